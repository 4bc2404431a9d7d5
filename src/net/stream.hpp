// A connection to one peer, plain or encrypted. Nothing here blocks; what waits takes a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "lockstep/error.hpp"

namespace lockstep::net {

using Clock = std::chrono::steady_clock;

/// The connection is gone: closed or reset by the peer, or by what lies between.
class ConnectionLost : public Error {
 public:
  explicit ConnectionLost(const std::string& message) : Error(ErrorCode::unavailable, message) {}
};

/// The host answers, and nothing listens there: the process that did has ended, or has not begun to.
class NobodyListens : public Error {
 public:
  explicit NobodyListens(const std::string& message) : Error(ErrorCode::unavailable, message) {}
};

/// One thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Takes what has arrived and fits; 0 when nothing has. Throws ConnectionLost.
  virtual std::size_t read_some(std::span<std::byte> to) = 0;

  /// The same for two places, of which the second is filled when the first is full; perhaps only the first is.
  virtual std::size_t read_some(std::span<std::byte> first, std::span<std::byte> /*second*/) {
    return read_some(first);
  }

  /// Hands over as much as is taken now; 0 when nothing is. What was not taken comes first the next time. Throws
  /// ConnectionLost.
  virtual std::size_t write_some(std::span<const std::byte> from) = 0;

  /// The same for bytes that lie in several places, at most kMostParts, one behind the other.
  static constexpr std::size_t kMostParts = 32;
  using Parts = std::span<const std::span<const std::byte>>;
  virtual std::size_t write_some(Parts parts) {
    std::size_t gone = 0;
    for (const auto& part : parts) {
      const std::size_t of_part = part.empty() ? 0 : write_some(part);
      gone += of_part;
      if (of_part < part.size()) break;
    }
    return gone;
  }

  /// Nothing is held back on this side: what was not read yet is seen by poll, and what was read or taken in part was
  /// all there was, or all there was room for.
  virtual bool is_direct() const { return false; }

  /// Bytes that poll does not see any more, because they lie on this side.
  virtual std::size_t held_back() const { return 0; }

  /// To poll. After a read that took everything there was.
  virtual int fd() const = 0;
};

/// Until all of it is read or written. Throws Error(timeout) at the deadline, and ConnectionLost.
void read_whole(Stream& stream, std::span<std::byte> to, Clock::time_point deadline);
void write_whole(Stream& stream, std::span<const std::byte> from, Clock::time_point deadline);

/// Waits for `events` of poll(2). False at the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline);

}  // namespace lockstep::net
