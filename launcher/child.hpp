// Starts one rank as a child process and holds its ends.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "program.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

/// What a rank gets back that the launcher has changed for itself.
struct InheritedState {
  sigset_t signal_mask{};
  bool default_sigpipe = true;
  rlimit open_files{};
};

struct ChildSettings {
  const Program& program;
  const std::vector<std::string>& environment;
  int standard_input;            ///< becomes descriptor 0 of the child
  std::vector<int> descriptors;  ///< the only others that the child inherits
  const std::vector<int>& cpus;  ///< to which it is bound; empty: to none
  std::atomic<pid_t>& group;     ///< in shared memory; the child writes its process group there
  const InheritedState& inherited;
};

/// A running rank. Its process group has its own number, so that everything it starts can be signalled with it.
struct Child {
  pid_t pid = -1;
  UniqueFd process;          ///< pidfd
  UniqueFd standard_output;  ///< read end, non-blocking
  UniqueFd standard_error;   ///< read end, non-blocking
  UniqueFd start_error;      ///< read end, non-blocking; see below
};

/// Forks and executes. The child dies with this process (PR_SET_PDEATHSIG). REQUIRES: no other threads.
/// Throws std::system_error when no process can be made.
Child start_child(const ChildSettings& settings);

/// After the child's end: errno of the execve that failed, or nothing when the program was started.
std::optional<int> read_start_error(const Child& child);

}  // namespace lockstep::launcher
