// TCP sockets that never block.
#pragma once

#include <optional>

#include "base/private_fd.hpp"
#include "net/address.hpp"
#include "net/stream.hpp"

namespace lockstep::net {

class Socket final : public Stream {
 public:
  Socket() = default;
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}  ///< from now on forked children do not have it

  /// Throws Error(unavailable) when nobody listens there, Error(timeout) at the deadline.
  static Socket connect(const Address& to, Clock::time_point deadline);

  std::size_t read_some(std::span<std::byte> to) override;
  std::size_t write_some(std::span<const std::byte> from) override;
  int fd() const override { return fd_.get(); }

  /// The first byte that has arrived, which stays to be read; nullopt when there is none yet. Throws ConnectionLost.
  std::optional<std::byte> first_byte() const;

  /// Of the other side, for people.
  std::string peer() const;

 private:
  PrivateFd fd_;
};

class Listener {
 public:
  /// With port 0 the system chooses one. Throws Error(invalid_argument) for an address that means all interfaces, and
  /// Error(system).
  explicit Listener(const Address& address);

  const Address& address() const { return address_; }
  int fd() const { return fd_.get(); }

  /// nullopt when nobody waits.
  std::optional<Socket> accept();

 private:
  PrivateFd fd_;
  Fd reserve_;  ///< given up for a moment to turn callers away when the process has no descriptor left
  Address address_;
};

}  // namespace lockstep::net
