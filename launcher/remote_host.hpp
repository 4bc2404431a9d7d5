// Another host of a job, as the launcher sees it: an ssh connection with an agent at its other end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "agent_protocol.hpp"
#include "child.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

struct SshOptions {
  int port = 0;          ///< 0: as ssh is configured
  std::string identity;  ///< a file; empty: as ssh is configured
};

class RemoteHost {
 public:
  /// Starts ssh, or, on this machine, the agent itself. It dies with the launcher. `group` is the guardian's.
  RemoteHost(std::string name, int first_rank, int ranks, const SshOptions& ssh, const InheritedState& inherited,
             std::atomic<pid_t>& group);

  const std::string& name() const { return name_; }
  int first_rank() const { return first_rank_; }
  int ranks() const { return ranks_; }
  pid_t pid() const { return ssh_.pid; }
  const std::optional<Greeting>& greeting() const { return greeting_; }

  int output_fd() const { return ssh_.standard_output.get(); }          ///< -1 after the end of the connection
  int words_fd() const { return ssh_.standard_error.get(); }            ///< what ssh itself says
  int input_fd() const { return unsent_.empty() ? -1 : input_.get(); }  ///< -1 while there is nothing to write

  /// Takes what has come, at most one buffer full, and calls `take` for each frame. False when nothing more is there
  /// now.
  bool read(const std::function<void(const Frame&)>& take);
  void read_words();

  /// What the connection does not take at once goes with `write_some`, when `input_fd` can be written to.
  void send(const Frame& frame);
  void write_some();

  /// Ends the connection, and with it all that runs there.
  void hang_up();

  bool is_connected() const { return static_cast<bool>(ssh_.standard_output); }

  /// Waits until ssh has ended, which it does after what it runs there; but not beyond the deadline.
  void await_end(std::chrono::steady_clock::time_point deadline) const;

  /// Why the connection has ended, in ssh's own words. Waits for ssh to end, but not longer than 500 ms.
  std::string why_lost();

 private:
  void forget_unsent();

  std::string name_;
  int first_rank_;
  int ranks_;
  UniqueFd input_;
  Child ssh_;
  std::optional<Greeting> greeting_;
  std::string line_;  // the greeting, as far as it has come
  FrameReader reader_;
  std::string unsent_;
  std::size_t sent_ = 0;  // bytes of `unsent_` that have gone
  std::string words_;
  std::string complaint_;  // about what has come
};

}  // namespace lockstep::launcher
