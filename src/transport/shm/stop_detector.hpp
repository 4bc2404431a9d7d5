// Tells a stopped process from a slow one.
//
// A peer that is merely slow, waits for its disk, or is held by a debugger is not to be failed; one that was stopped
// (SIGSTOP, state T) will not come back by itself. A whole job that is paused (Ctrl-Z) stops the detector too, and a
// detector that notices that it was late starts again.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <vector>

namespace lockstep::transport::shm {

class StopDetector {
 public:
  explicit StopDetector(int ranks) : watched_(static_cast<std::size_t>(ranks)) {}

  /// True once `pid` has been seen in state T for `kPatience` without a break. Cheap to call often; thread-safe.
  bool stopped(int rank, pid_t pid);

  static constexpr std::chrono::milliseconds kPatience{3000};

 private:
  using Clock = std::chrono::steady_clock;
  struct Watch {
    Clock::time_point since{};
    Clock::time_point looked{};
    bool stopped = false;
  };

  std::mutex mutex_;
  std::vector<Watch> watched_;  // protected by mutex_
};

}  // namespace lockstep::transport::shm
