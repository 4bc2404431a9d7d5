#include "stack.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "errors.hpp"
#include "processes.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

namespace {

constexpr const char* kHelp =
    "Usage: lockstep stack [JOB]\n\n"
    "Shows where every rank of a running job of yours is: its state, the operation that it waits in, and the Python\n"
    "stack of ranks that have called init. JOB is the pid of its `lockstep run`, or the beginning of its name\n"
    "(LOCKSTEP_JOB); it may be left out when there is only one. The job goes on undisturbed.\n";

struct FoundJob {
  std::string name;
  std::vector<RankProcess> ranks;
};

/// By the launcher's pid. A rank is a child of its launcher that carries the job's name and a rank.
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
    listed.push_back(fmt::format("{} (pid {}, {} ranks)", job.name, launcher, job.ranks.size()));
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

int run_stack(const std::vector<std::string>& arguments) {
  std::string text;
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    text = kHelp;
  } else if (arguments.size() > 1 || (!arguments.empty() && arguments[0].rfind('-', 0) == 0)) {
    throw UsageError("lockstep stack takes one job. See: lockstep stack --help");
  } else {
    const auto jobs = find_jobs();
    const FoundJob& job = choose(jobs, arguments.empty() ? "" : arguments[0]);
    for (const std::string& line : describe(find_whereabouts(job.ranks))) text += line + "\n";
  }
  return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace lockstep::launcher
