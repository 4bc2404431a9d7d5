// One connection to a peer: bytes go, frames come. Nothing here waits.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "net/frame.hpp"
#include "net/stream.hpp"
#include "transport/tcp/even_sharing.hpp"
#include "transport/transport.hpp"

namespace lockstep::transport::tcp {

class Link {
 public:
  Link(std::unique_ptr<net::Stream> stream, std::uint32_t epoch);

  /// Sends what the system takes of these bytes, one part behind the other, and says how much that was. Throws
  /// net::ConnectionLost.
  std::size_t give(net::Stream::Parts parts) { return stream_->write_some(parts); }
  /// What was not taken is not held on to: something else may come first the next time.
  bool is_direct() const { return stream_->is_direct(); }

  /// The next frame that has arrived. Throws net::ConnectionLost and net::BadFrame. It reads as long as there is
  /// something, but no more than about `kBatch` bytes after `begin_batch`, and nothing after `end_batch`, except what
  /// an encrypted stream has taken already: a peer that sends faster than this rank reads must not keep it from doing
  /// anything else.
  std::optional<net::Frame> receive();
  void begin_batch() { left_in_batch_ = kBatch; }
  void end_batch() { left_in_batch_ = 0; }

  std::uint64_t bytes_read() const { return bytes_read_; }

  /// Something is on its way, and nothing of it has been acknowledged for so long, as far as calls could tell: to be
  /// asked now and then. A peer that only does not read acknowledges all the same, so this is the network's doing.
  bool is_swallowed(net::Clock::time_point now, net::Clock::duration limit);

  /// What TCP has found of the way to the peer: the shortest round trip, and the rate at which bytes have arrived.
  Network network() const;

  /// With the connections of other hosts; `mind_losses` now and then, true when that has just come to an end.
  void share_evenly() { sharing_.begin(fd()); }
  bool mind_losses() { return sharing_.look(fd()); }

  /// Where the data of pieces belongs (net::FrameReader).
  net::FrameReader& reader() { return reader_; }

  /// Bytes that the peer's system has not acknowledged yet.
  bool is_unacknowledged() const;
  int fd() const { return stream_->fd(); }

 private:
  static constexpr std::size_t kBatch = 512 << 10;

  std::size_t read(std::span<std::byte> to, std::span<std::byte> ahead = {});

  std::unique_ptr<net::Stream> stream_;
  EvenSharing sharing_;
  net::FrameReader reader_;
  // Bytes are read ahead, so that several small frames cost one system call. A large frame is read past it.
  std::vector<std::byte> ahead_;
  std::span<const std::byte> unread_;
  std::size_t left_in_batch_ = kBatch;
  std::uint64_t bytes_read_ = 0;
  std::uint64_t acknowledged_ = 0;  // bytes, when that was last asked
  net::Clock::time_point acknowledged_at_ = net::Clock::now();
};

}  // namespace lockstep::transport::tcp
