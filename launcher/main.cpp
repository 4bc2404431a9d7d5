// The program `lockstep`: finds the command and runs it.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include "agent.hpp"
#include "completion.hpp"
#include "doctor.hpp"
#include "dry_run.hpp"
#include "job.hpp"
#include "lockstep/version.hpp"
#include "manual.hpp"
#include "program.hpp"
#include "run_options.hpp"
#include "self_check.hpp"
#include "stack.hpp"
#include "timeline.hpp"

namespace {

using namespace lockstep::launcher;
using Arguments = std::vector<std::string>;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnavailable = 69;
constexpr int kExitIncompatible = 76;

int show(const std::string& text) {
  // A line that cannot be written (a full disk, a closed pipe) must not look like success.
  return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : kExitFailed;
}

int run(const Arguments& arguments) {
  const auto parsed = parse_run_options(arguments);
  if (const auto* help = std::get_if<HelpText>(&parsed)) return show(help->text);
  const auto& options = std::get<RunOptions>(parsed);
  if (options.check_build) return show(build_table());
  const char* search_path = std::getenv("PATH");
  // Other hosts find it by themselves.
  const Program program =
      options.hosts.empty()
          ? resolve_program(options.command, options.module, search_path != nullptr ? search_path : "/usr/bin:/bin")
          : Program{options.command.front(), options.command};
  return options.dry_run ? show(describe_job(options, program)) : run_job(options, program);
}

int show_manual(const Arguments& arguments);
int show_completion(const Arguments& arguments);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
};

constexpr Command kCommands[] = {
    {"run", "start a program as the ranks of one job", run},
    {"stack", "show where every rank of a running job is", run_stack},
    {"timeline", "make one file of the timelines of several ranks", run_timeline},
    {"doctor", "look at what is installed and works, and how to mend what does not", run_doctor},
    {"manual", "print the manual page: lockstep manual | man -l -", show_manual},
    {"completion", "print the completion for bash: eval \"$(lockstep completion)\"", show_completion},
};

std::vector<CommandText> describe_commands() {
  std::vector<CommandText> texts = {describe_run(), describe_stack(), describe_timeline(), describe_doctor()};
  for (const Command& command : kCommands) {
    const auto is_same = [&](const CommandText& text) { return text.name == command.name; };
    if (std::any_of(texts.begin(), texts.end(), is_same)) continue;
    const std::string what = command.summary;
    texts.push_back({.name = command.name, .usage = fmt::format("lockstep {}", command.name), .description = what});
  }
  return texts;
}

void refuse_arguments(const char* command, const Arguments& arguments) {
  if (!arguments.empty()) throw UsageError(fmt::format("lockstep {} takes no arguments", command));
}

int show_manual(const Arguments& arguments) {
  refuse_arguments("manual", arguments);
  return show(manual_page(describe_commands()));
}

int show_completion(const Arguments& arguments) {
  refuse_arguments("completion", arguments);
  return show(bash_completion(describe_commands()));
}

std::string overview() {
  std::string text = "Usage: lockstep COMMAND [ARGUMENTS...]\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<11} {}\n", command.name, command.summary);
  return text + "\nOptions:\n  --help      this text; lockstep COMMAND --help tells more\n  --version   the version\n";
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) throw UsageError("a command is missing, for example: lockstep run -np 2 python train.py");
  const std::string& name = arguments.front();
  if (name == "--version" || name == "-V") return show(fmt::format("lockstep {}\n", lockstep::version()));
  if (name == "--help" || name == "-h" || name == "help") return show(overview());
  if (name == kAgentCommand) return run_agent(Arguments(arguments.begin() + 1, arguments.end()));
  if (name == kSelfTestRank && arguments.size() == 2) return run_self_test_rank(arguments[1]);
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(Arguments(arguments.begin() + 1, arguments.end()));
  }
  throw UsageError(fmt::format("there is no command {}. See: lockstep --help", name));
}

/// Otherwise the next file that is opened would become the standard output.
void ensure_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  ensure_standard_descriptors();
  try {
    return dispatch(Arguments(argv + 1, argv + argc));
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kExitUsage;
  } catch (const UnavailableError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kExitUnavailable;
  } catch (const IncompatibleError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kExitIncompatible;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kExitFailed;
  }
}
