// Runs another program in the background, for a bounded time, and takes what it writes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "unique_fd.hpp"

namespace lockstep::launcher {

struct CommandResult {
  int exit_code = -1;  ///< -1: it could not be started, was killed, or took too long
  std::string output;  ///< standard output and standard error

  bool ok() const { return exit_code == 0; }
  std::string first_line() const { return output.substr(0, output.find('\n')); }
};

/// Starts at once, so that several can run side by side. What is still running at the end of its life is killed.
class BackgroundCommand {
 public:
  /// `arguments[0]` is searched for in PATH.
  explicit BackgroundCommand(const std::vector<std::string>& arguments);
  ~BackgroundCommand() { end(); }
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;

  /// Waits for its end, but not longer than until `deadline`; then it is killed with all that it has started.
  CommandResult result(std::chrono::steady_clock::time_point deadline);

 private:
  int end();

  pid_t pid_ = -1;
  UniqueFd output_;
};

}  // namespace lockstep::launcher
