#include "doctor.hpp"

#include <fmt/core.h>
#include <sys/utsname.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "capture.hpp"
#include "lockstep/version.hpp"
#include "machine_checks.hpp"
#include "python_environment.hpp"
#include "rendezvous/pmix.hpp"
#include "run_options.hpp"
#include "self_check.hpp"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using Level = Finding::Level;
namespace fs = std::filesystem;

// A command that prints its version takes milliseconds; one that asks a dead server takes for ever.
constexpr std::chrono::milliseconds kAnswerTime{1500};
constexpr std::chrono::milliseconds kPythonTime{5000};  // answers for sure, but may come from a slow disk
constexpr std::chrono::milliseconds kSelfTestTime{10000};

std::string program_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "lockstep" : path.string();
}

/// As Python finds it; without Python, beside this program: where it is installed, or where it is built.
std::string find_library(const PythonEnvironment& python) {
  if (const char* named = std::getenv("LOCKSTEP_LIBRARY"); named != nullptr && *named != '\0') return named;
  if (!python.library.empty()) return python.library;
  const fs::path folder = fs::path(program_path()).parent_path();
  for (const char* place :
       {"../lib/liblockstep.so", "../lib/x86_64-linux-gnu/liblockstep.so", "../lib/aarch64-linux-gnu/liblockstep.so",
        "../lib64/liblockstep.so", "../src/liblockstep.so"}) {
    std::error_code error;
    const fs::path path = fs::weakly_canonical(folder / place, error);
    if (fs::is_regular_file(path, error)) return path.string();
  }
  return {};
}

Finding check_engine(const std::string& library, const PythonEnvironment& python) {
  if (library.empty()) {
    return {"engine", Level::problem,
            python.library_error.empty() ? "liblockstep.so is neither beside this program nor in the Python on the PATH"
                                         : python.library_error,
            "pip install lockstep"};
  }
  std::string error;
  const std::string found = version_of_library(library, error);
  if (found.empty()) {
    return {"engine", Level::problem, fmt::format("{} cannot be used: {}", library, error),
            "pip install --force-reinstall lockstep"};
  }
  if (found != version()) {
    return {"engine", Level::problem,
            fmt::format("{} is version {}, but this program is {}", library, found, version()),
            fmt::format("pip install --force-reinstall lockstep=={}", version())};
  }
  return {"engine", Level::good, fmt::format("{} in {}", found, library)};
}

Finding check_python(const PythonEnvironment& python) {
  if (python.python.empty()) {
    return {"Python", Level::absent, "no python3 on the PATH; needed for Python programs only",
            "sudo apt-get install python3"};
  }
  const std::string text = fmt::format("{} in {}", python.python, python.executable);
  if (!python.lockstep.empty()) return {"Python", Level::good, text + ", with lockstep " + python.lockstep};
  return {"Python", Level::advice, text + ", without the package lockstep", "python3 -m pip install lockstep"};
}

Finding check_torch(const PythonEnvironment& python) {
  if (!python.torch.empty()) return {"PyTorch", Level::good, python.torch};
  return {"PyTorch", Level::absent, "not in this Python", "python3 -m pip install torch"};
}

/// Tools that are used if they are there.
Finding check_tool(const char* name, const CommandResult& answer, const char* use, const char* remedy) {
  if (answer.ok() && !answer.output.empty()) return {name, Level::good, answer.first_line()};
  return {name, Level::absent, use, remedy};
}

/// What `srun --mpi=list` says: the ways in which its tasks can meet.
bool has_pmix(const CommandResult& answer) { return answer.ok() && answer.output.find("pmix") != std::string::npos; }

/// Launchers under which ranks find each other without us. A `protects` one hands over the secret where PMIx is there.
Finding check_launcher(const char* name, const CommandResult& answer, bool protects, const char* remedy) {
  Finding finding = check_tool(name, answer, "not installed; nothing here needs it", remedy);
  if (answer.exit_code > 0 && !answer.output.empty()) {
    const std::string said = answer.output.substr(0, answer.output.find_last_not_of('\n') + 1);
    return {name, Level::absent, "installed, but it cannot be used here: " + said.substr(said.rfind('\n') + 1)};
  }
  if (finding.level != Level::good) return finding;
  if (const auto at = answer.output.find("Version:"); finding.text.starts_with("HYDRA") && at != std::string::npos) {
    const auto from = answer.output.find_first_not_of(' ', at + std::strlen("Version:"));
    finding.text = "MPICH " + answer.output.substr(from, answer.output.find('\n', from) - from);
    protects = false;
  }
  const bool pmix = protects && rendezvous::Pmix::load() != nullptr;
  finding.text += pmix ? "; its ranks find each other, through PMIx" : "; its ranks find each other, by their user";
  return finding;
}

PythonEnvironment ask_python() {
  BackgroundCommand command(python_question());
  return read_python_answer(command.result(Clock::now() + kPythonTime));
}

std::vector<Finding> examine(bool self_test) {
  const auto deadline = Clock::now() + kAnswerTime;
  BackgroundCommand python_command(python_question());
  BackgroundCommand ssh({"ssh", "-V"});
  BackgroundCommand mpi({"mpirun", "--version"});
  BackgroundCommand slurm({"srun", "--version"});
  BackgroundCommand slurm_plugins({"srun", "--mpi=list"});

  std::vector<Finding> findings = check_machine();
  const PythonEnvironment python = read_python_answer(python_command.result(Clock::now() + kPythonTime));
  const std::string library = find_library(python);
  findings.insert(findings.begin(), check_engine(library, python));
  if (self_test && findings.front().level == Level::good) {
    findings.insert(findings.begin() + 1, run_self_test(program_path(), library, kSelfTestTime));
  }
  findings.push_back(check_python(python));
  findings.push_back(check_torch(python));
  constexpr const char* kForHosts = "not installed; jobs on several hosts (lockstep run -H) need it";
  findings.push_back(check_tool("ssh", ssh.result(deadline), kForHosts, "sudo apt-get install openssh-client"));
  findings.push_back(check_launcher("MPI", mpi.result(deadline), true, "sudo apt-get install openmpi-bin"));
  findings.push_back(check_launcher("Slurm", slurm.result(deadline), has_pmix(slurm_plugins.result(deadline)),
                                    "sudo apt-get install slurm-client"));
  return findings;
}

const char* level_text(Level level) {
  switch (level) {
    case Level::good:
      return "ok";
    case Level::absent:
      return "-";
    case Level::advice:
      return "advice";
    default:
      return "PROBLEM";
  }
}

std::string heading() {
  utsname system{};
  ::uname(&system);
  return fmt::format("lockstep {} on {} {} {}", version(), system.sysname, system.release, system.machine);
}

std::string as_text(const std::vector<Finding>& findings) {
  std::string text = heading() + "\n\n";
  for (const Finding& finding : findings) {
    text += fmt::format("  {:<8} {:<17} {}\n", level_text(finding.level), finding.name, finding.text);
    if (!finding.remedy.empty() && finding.level != Level::good) {
      text += fmt::format("  {:<8} {:<17} $ {}\n", "", "", finding.remedy);
    }
  }
  const auto problems = std::count_if(findings.begin(), findings.end(),
                                      [](const Finding& finding) { return finding.level == Level::problem; });
  return text + (problems == 0   ? "\nJobs can run here.\n"
                 : problems == 1 ? "\nOne problem to solve first.\n"
                                 : fmt::format("\n{} problems to solve first.\n", problems));
}

std::string as_json(const std::vector<Finding>& findings, bool healthy) {
  nlohmann::ordered_json result = {{"version", version()}, {"healthy", healthy}, {"findings", nlohmann::json::array()}};
  for (const Finding& finding : findings) {
    static constexpr const char* kLevels[] = {"good", "absent", "advice", "problem"};
    nlohmann::ordered_json entry = {
        {"name", finding.name}, {"level", kLevels[static_cast<int>(finding.level)]}, {"text", finding.text}};
    if (!finding.remedy.empty()) entry["remedy"] = finding.remedy;
    result["findings"].push_back(std::move(entry));
  }
  return result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

struct DoctorCommandLine {
  CLI::App app{"Looks at what is installed and works, and names the command that mends what does not.",
               "lockstep doctor"};
  bool json = false;
  bool table = false;
  bool no_self_test = false;

  DoctorCommandLine() {
    app.add_flag("--json", json, "One JSON object, for tools");
    app.add_flag("--check-build", table, "The table of horovodrun --check-build, and nothing else");
    app.add_flag("--no-self-test", no_self_test, "Start no ranks");
    app.footer("\nExit codes: 0 jobs can run here; 1 there is a problem; 2 the command is wrong.");
  }
};

}  // namespace

std::string build_table() {
  const PythonEnvironment python = ask_python();
  const auto row = [](bool there, const char* name) { return fmt::format("    [{}] {}\n", there ? 'X' : ' ', name); };
  const bool torch = !python.torch.empty() && !python.library.empty();
  const bool engine = !find_library(python).empty();
  return fmt::format("Lockstep v{}:\n\nAvailable Frameworks:\n", version()) + row(false, "TensorFlow") +
         row(torch, "PyTorch") + row(false, "MXNet") + "\nAvailable Controllers:\n" + row(engine, "Lockstep") +
         row(false, "MPI") + row(false, "Gloo") + "\nAvailable Tensor Operations:\n" + row(engine, "Lockstep") +
         row(false, "NCCL") + row(false, "DDL") + row(false, "CCL") + row(false, "MPI") + row(false, "Gloo");
}

CommandText describe_doctor() {
  const DoctorCommandLine line;
  return {.name = "doctor",
          .usage = "lockstep doctor [OPTIONS]",
          .description = line.app.get_description(),
          .options = option_texts(line.app),
          .notes = line.app.get_footer()};
}

int run_doctor(const std::vector<std::string>& arguments) {
  DoctorCommandLine line;
  std::string text;
  bool healthy = true;
  try {
    line.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    if (line.table) {
      text = build_table();
    } else {
      const std::vector<Finding> findings = examine(!line.no_self_test);
      healthy = std::none_of(findings.begin(), findings.end(),
                             [](const Finding& finding) { return finding.level == Level::problem; });
      text = line.json ? as_json(findings, healthy) : as_text(findings);
    }
  } catch (const CLI::CallForHelp&) {
    text = line.app.help();
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{}. See: lockstep doctor --help", error.what()));
  }
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 1;
  return healthy ? 0 : 1;
}

}  // namespace lockstep::launcher
