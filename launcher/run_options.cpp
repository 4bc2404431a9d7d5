#include "run_options.hpp"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <memory>

namespace lockstep::launcher {

namespace {

constexpr const char* kFooter = R"(
Everything after PROGRAM belongs to it, flags included.
A PROGRAM that ends in .py and is not an executable script is run with python3.

Output: lines of the ranks' stdout come out on stdout, those of stderr on stderr, whole and with "[rank] " before
them. On a terminal the rank is coloured (NO_COLOR switches that off) and a progress bar of rank 0 stays in place.
Input: rank 0 reads the standard input unless that is a terminal; the other ranks read nothing.
Ctrl-C stops the job, a second one at once. When a rank fails the others are stopped, and the last lines say who
failed first, and why.

Exit codes: 0 done; 1 the program failed; 2 the command cannot be run as given; 130 after Ctrl-C; 143 after SIGTERM.

Examples:
  lockstep run -np 4 python train.py --epochs 3
  lockstep run -np 2 -m my_package.train
  lockstep run -np 2 ./my_program)";

constexpr int kMostProcesses = 4096;

/// CLI11 knows one-letter flags only, so `-np` gets its long name; and torchrun's underscores become dashes.
/// Tokens of the user's program are rewritten too, which is harmless: they are taken from the original list.
std::string canonical(const std::string& argument) {
  if (argument == "-np") return "--num-proc";
  if (argument.rfind("-np=", 0) == 0) return "--num-proc" + argument.substr(3);
  if (argument.rfind("--", 0) != 0) return argument;
  std::string result = argument;
  std::replace(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(std::min(result.find('='), result.size())),
               '_', '-');
  return result;
}

class RunFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string name) const override {
    return "Usage: " + name + " -np N [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

int parse_processes(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostProcesses) {
    throw UsageError(
        fmt::format("-np {}: the number of processes must be a whole number from 1 to {}. For example: "
                    "lockstep run -np 2 python train.py",
                    text.empty() ? "''" : text, kMostProcesses));
  }
  return value;
}

}  // namespace

std::variant<RunOptions, HelpText> parse_run_options(const std::vector<std::string>& arguments) {
  RunOptions options;
  std::string processes;
  double shutdown_seconds = 2.0;

  CLI::App app("Starts N processes of a program on this machine as the ranks of one job.", "lockstep run");
  app.formatter(std::make_shared<RunFormatter>());
  app.footer(kFooter);
  app.prefix_command();
  app.add_option("-n,--num-proc,--nproc-per-node", processes, "Number of processes; also written -np")->type_name("N");
  app.add_flag("-m,--module", options.module, "PROGRAM is a Python module: python3 -m PROGRAM");
  app.add_option("--output", options.output_directory,
                 "Also keep each rank's output, as it was written, in DIR/rank.R/stdout and DIR/rank.R/stderr")
      ->type_name("DIR");
  app.add_option("--shutdown-timeout", shutdown_seconds,
                 "Seconds a rank that was asked to stop has before it is killed (2)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("-q,--quiet", options.quiet, "Show only the output of the ranks, and errors");
  app.add_flag("--dry-run", options.dry_run, "Show what would be started, and start nothing");

  std::vector<std::string> reversed;
  for (auto it = arguments.rbegin(); it != arguments.rend(); ++it) reversed.push_back(canonical(*it));
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return HelpText{app.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}. See: lockstep run --help", error.what()));
  }

  // The parser leaves the program and all that follows it, but also flags that it does not know.
  const std::size_t left = app.remaining().size();
  options.command.assign(arguments.end() - static_cast<std::ptrdiff_t>(left), arguments.end());
  if (left > 0 && app.remaining().front() == "--") {
    options.command.erase(options.command.begin());
  } else if (left > 0 && app.remaining().front().size() > 1 && app.remaining().front()[0] == '-') {
    throw UsageError(
        fmt::format("unknown option {}. Options of lockstep run stand before PROGRAM; see: "
                    "lockstep run --help",
                    app.remaining().front()));
  }

  if (processes.empty() && app.count("--num-proc") == 0) {
    throw UsageError("the number of processes is missing. Add -np N, for example: lockstep run -np 2 python train.py");
  }
  options.processes = parse_processes(processes);
  if (options.command.empty() || options.command.front().empty()) {
    throw UsageError(
        fmt::format("the program is missing. Write it after the options, for example: "
                    "lockstep run -np {} python train.py",
                    options.processes));
  }
  options.shutdown_timeout = std::chrono::milliseconds(static_cast<long>(shutdown_seconds * 1000));
  return options;
}

}  // namespace lockstep::launcher
