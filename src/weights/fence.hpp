// Makes sure that a process which the others have gone on without cannot write any more.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/fd.hpp"

namespace lockstep::weights {

/// The processes of the ranks that share weights, by seat. They are held by pidfd, so a number that is used again is
/// not mistaken for them.
class Fence {
 public:
  explicit Fence(const std::vector<pid_t>& pids);

  /// Kills it unless it is dead already, and waits until it is gone. This process itself is left alone: ranks may be
  /// threads of it. Throws Error(system) when it does not end.
  void end(std::size_t seat);

 private:
  std::vector<pid_t> pids_;
  std::vector<Fd> processes_;
};

}  // namespace lockstep::weights
