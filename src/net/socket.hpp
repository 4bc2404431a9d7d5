// TCP sockets that never block.
#pragma once

#include <mutex>
#include <optional>

#include "base/private_fd.hpp"
#include "net/address.hpp"
#include "net/stream.hpp"

namespace lockstep::net {

class Socket final : public Stream {
 public:
  Socket() = default;
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}  ///< from now on forked children do not have it

  /// Throws NobodyListens, Error(unavailable) when there is no way to the host, and Error(timeout) at the deadline.
  static Socket connect(const Address& to, Clock::time_point deadline);

  std::size_t read_some(std::span<std::byte> to) override;
  std::size_t read_some(std::span<std::byte> first, std::span<std::byte> second) override;
  std::size_t write_some(std::span<const std::byte> from) override { return write_some(Parts(&from, 1)); }
  std::size_t write_some(Parts parts) override;
  bool is_direct() const override { return true; }
  int fd() const override { return fd_.get(); }

  /// The first byte that has arrived, which stays to be read; nullopt when there is none yet. Throws ConnectionLost.
  std::optional<std::byte> first_byte() const;

  /// Of the other side, for people.
  std::string peer() const;

 private:
  static std::size_t checked(ssize_t got);  // what recv has said

  PrivateFd fd_;
};

/// A place where others can call. It is this object's as long as it exists, and heard only while it is open, so nobody
/// finds a port that nobody looks after.
class Listener {
 public:
  /// With port 0 the system chooses one. Throws Error(invalid_argument) for an address that means all interfaces, and
  /// Error(system).
  explicit Listener(const Address& address);

  /// From any thread. It is open until `close` was called as often. Throws Error(system).
  void open();
  /// The last one also drops those who have called and were not yet let in.
  void close();

  const Address& address() const { return address_; }
  int fd() const { return fd_.get(); }

  /// nullopt when nobody waits.
  std::optional<Socket> accept();

 private:
  PrivateFd fd_;
  std::mutex mutex_;
  int openings_ = 0;  ///< protected by mutex_
  Fd reserve_;        ///< given up for a moment to turn callers away when the process has no descriptor left
  Address address_;
};

}  // namespace lockstep::net
