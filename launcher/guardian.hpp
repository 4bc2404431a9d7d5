// The guardian: a tiny process beside the launcher that cleans up after it when it is killed.
//
// A launcher that dies by SIGKILL can do nothing any more. The kernel then kills the ranks (PR_SET_PDEATHSIG), but not
// what the ranks had started. The guardian waits for the launcher's end, and kills the process groups of all ranks and
// every process that carries the job's name in its environment.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace lockstep::launcher {

class Guardian {
 public:
  /// Forks the guardian. REQUIRES: the caller has no other threads, and has not started a rank yet.
  Guardian(int ranks, const std::string& job_id);
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Where a rank writes its process group before it becomes the user's program. Shared with the guardian.
  std::atomic<pid_t>& group_of(int rank) { return groups_[rank]; }

  pid_t pid() const { return pid_; }

  /// The job is over and nothing is left of it: ends the guardian.
  void dismiss();

 private:
  [[noreturn]] void watch(int launcher, const std::string& job_id);

  std::size_t count_;
  std::atomic<pid_t>* groups_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launcher
