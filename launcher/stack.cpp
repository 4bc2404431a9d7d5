#include "stack.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>

#include "errors.hpp"
#include "processes.hpp"
#include "stack_door.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

namespace {

constexpr const char* kStackUsage = "lockstep stack [JOB]";
constexpr const char* kStackText =
    R"(Shows where every rank of a running job of yours is: its state, the operation that it waits in, and the Python
stack of ranks that have called init. JOB is the pid of its `lockstep run`, or the beginning of its name
(LOCKSTEP_JOB); it may be left out when there is only one. The job goes on undisturbed.

Ranks on other hosts are shown on the machine of their `lockstep run`; any other host shows its own ranks.)";

// A launcher gives its hosts two seconds.
constexpr std::chrono::milliseconds kAskLauncher{4000};

struct FoundJob {
  std::string name;
  std::vector<RankProcess> ranks;   // of this machine
  std::optional<FoundDoor> door{};  // where its launcher is asked, which has ranks on other hosts
};

/// By the launcher's pid. A rank is a child of its launcher, or of an agent, that carries the job's name and a rank.
std::map<pid_t, FoundJob> find_jobs() {
  std::map<pid_t, FoundJob> jobs;
  for (const ProcessInfo& process : list_processes()) {
    if (!process.is_alive() || process.group != process.pid) continue;
    const auto name = read_from_environment(process.pid, "LOCKSTEP_JOB");
    const auto rank = read_from_environment(process.pid, "LOCKSTEP_RANK");
    if (!name || !rank || read_from_environment(process.parent, "LOCKSTEP_JOB") == name) continue;
    FoundJob& job = jobs[process.parent];
    job.name = *name;
    job.ranks.push_back({std::atoi(rank->c_str()), process.pid});
  }
  for (const FoundDoor& door : find_doors()) {
    // The agent of this machine has a part of the ranks, which the launcher tells as well.
    std::erase_if(jobs, [&](const auto& entry) { return entry.second.name == door.job; });
    jobs[door.launcher] = {.name = door.job, .ranks = {}, .door = door};
  }
  for (auto& [launcher, job] : jobs) {
    std::sort(job.ranks.begin(), job.ranks.end(),
              [](const RankProcess& one, const RankProcess& other) { return one.rank < other.rank; });
  }
  return jobs;
}

const FoundJob& choose(const std::map<pid_t, FoundJob>& jobs, const std::string& wanted) {
  std::vector<std::string> listed;
  const FoundJob* chosen = nullptr;
  int fitting = 0;
  for (const auto& [launcher, job] : jobs) {
    const std::string ranks = job.door ? "on several hosts" : fmt::format("{} ranks", job.ranks.size());
    listed.push_back(fmt::format("{} (pid {}, {})", job.name, launcher, ranks));
    if (!wanted.empty() && std::to_string(launcher) == wanted) return job;
    if (job.name.rfind(wanted, 0) != 0) continue;
    chosen = &job;
    ++fitting;
  }
  if (fitting == 1) return *chosen;
  if (jobs.empty()) throw UsageError("no job of yours is running on this machine");
  throw UsageError(fmt::format("{}. There are: {}",
                               fitting == 0 ? fmt::format("no job is called {}", wanted) : "several jobs are running",
                               fmt::join(listed, ", ")));
}

}  // namespace

CommandText describe_stack() {
  return {.name = "stack",
          .usage = kStackUsage,
          .description = kStackText,
          .options = {{.names = {"-h", "--help"}, .value = "", .description = "Print this help message and exit"}}};
}

int run_stack(const std::vector<std::string>& arguments) {
  std::string text;
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    text = fmt::format("Usage: {}\n\n{}\n", kStackUsage, kStackText);
  } else if (arguments.size() > 1 || (!arguments.empty() && arguments[0].rfind('-', 0) == 0)) {
    throw UsageError("lockstep stack takes one job. See: lockstep stack --help");
  } else {
    const auto jobs = find_jobs();
    const FoundJob& job = choose(jobs, arguments.empty() ? "" : arguments[0]);
    if (job.door) {
      text = ask_at(*job.door, kAskLauncher);
    } else {
      for (const std::string& line : describe(find_whereabouts(job.ranks))) text += line + "\n";
    }
  }
  return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace lockstep::launcher
