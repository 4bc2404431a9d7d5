// The launcher's own signals, as a descriptor to wait on beside the others.
#pragma once

#include <signal.h>

#include <optional>

#include "unique_fd.hpp"

namespace lockstep::launcher {

/// Takes over the signals that a launcher acts on. Signals that were ignored when it was started (nohup, a shell's
/// background job) stay ignored. The old mask is put back at the end.
class SignalSource {
 public:
  SignalSource();
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

  int fd() const { return fd_.get(); }

  /// The next signal that has arrived, if any.
  std::optional<int> next();

  /// The mask that was in force before.
  const sigset_t& previous_mask() const { return previous_; }

 private:
  sigset_t previous_{};
  UniqueFd fd_;
};

}  // namespace lockstep::launcher
