#include "job.hpp"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "base/memory_limit.hpp"
#include "child.hpp"
#include "running_job.hpp"

namespace lockstep::launcher {

namespace {

// No rank runs in less: its stacks and the memory in which the ranks meet take as much.
constexpr std::size_t kLeastPerRank = std::size_t{8} << 20;

}  // namespace

InheritedState take_over_limits(int ranks) {
  InheritedState state;
  checked(::sigprocmask(SIG_BLOCK, nullptr, &state.signal_mask), "sigprocmask");
  // A reader that goes away must not kill us; the write fails instead.
  state.default_sigpipe = ::signal(SIGPIPE, SIG_IGN) == SIG_DFL;
  checked(::getrlimit(RLIMIT_NOFILE, &state.open_files), "getrlimit");
  rlimit wanted = state.open_files;
  const auto needed = static_cast<rlim_t>(ranks) * 6 + 64;
  if (wanted.rlim_cur < needed) {
    wanted.rlim_cur = std::min(needed, wanted.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &wanted);
  }
  return state;
}

void refuse_too_little_memory(int ranks) {
  const std::size_t needed = static_cast<std::size_t>(ranks) * kLeastPerRank;
  const auto left = memory_left();
  if (left && *left < needed) {
    throw UnavailableError(
        fmt::format("{} MB are left under the memory limit of this control group, and {} ranks need at least {} MB. "
                    "Raise the limit (docker run --memory, sbatch --mem), or start fewer ranks",
                    *left >> 20, ranks, needed >> 20));
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && space.rlim_cur < 2 * kLeastPerRank) {
    throw UnavailableError(
        fmt::format("the address space of a process is limited to {} MB, in which no rank runs. Raise it: "
                    "ulimit -v unlimited",
                    space.rlim_cur >> 20));
  }
}

int run_job(const RunOptions& options, const Program& program) {
  if (options.hosts.empty()) refuse_too_little_memory(options.processes);
  const InheritedState inherited = take_over_limits(options.processes);
  // Nobody is left who could take what the function returns.
  if (!options.call_folder.empty()) checked(::prctl(PR_SET_PDEATHSIG, SIGTERM), "prctl");
  for (int restart = 0;; ++restart) {
    RunningJob job(options, program, inherited, restart);
    const int code = job.run();
    if (!job.is_to_be_restarted()) return code;
  }
}

}  // namespace lockstep::launcher
