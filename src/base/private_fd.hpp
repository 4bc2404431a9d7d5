// A file descriptor that a forked child does not have.
//
// A child that a program forks, such as a worker that loads data, inherits all descriptors. Were a rank's connections
// among them, they would stay open when the rank dies, and its peers would wait for it as long as the child lives.
#pragma once

#include "base/fd.hpp"

namespace lockstep {

/// In a forked child /dev/null takes its place, so that the number is not used for anything else. Moved, not copied.
class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(Fd fd);
  PrivateFd(PrivateFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept;
  ~PrivateFd() { close(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  void close() noexcept;

  int fd_ = -1;
};

}  // namespace lockstep
