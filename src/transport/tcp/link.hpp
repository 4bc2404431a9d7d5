// One connection to a peer, as a queue of frames in both directions. Nothing here waits.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "net/frame.hpp"
#include "net/stream.hpp"

namespace lockstep::transport::tcp {

class Link {
 public:
  Link(std::unique_ptr<net::Stream> stream, std::uint32_t epoch);

  /// Sends at once what the system takes, and copies the rest, to be sent by `flush`. Throws net::ConnectionLost.
  void send(std::span<const std::byte> head, std::span<const std::byte> body = {});
  void flush();

  /// Sends what the system takes of these bytes, past what `send` has kept, and says how much that was.
  std::size_t give(std::span<const std::byte> bytes);

  /// The next frame that has arrived. Throws net::ConnectionLost and net::BadFrame.
  std::optional<net::Frame> receive();

  bool has_unsent() const { return !unsent_.empty(); }
  /// Bytes that the peer's system has not acknowledged yet.
  bool is_unacknowledged() const;
  int fd() const { return stream_->fd(); }

 private:
  void keep(std::span<const std::byte> bytes);

  std::unique_ptr<net::Stream> stream_;
  net::FrameReader reader_;
  // Bytes are read ahead, so that several small frames cost one system call. A large frame is read past it.
  std::vector<std::byte> ahead_;
  std::span<const std::byte> unread_;
  std::deque<std::vector<std::byte>> unsent_;
  std::size_t sent_of_first_ = 0;
};

}  // namespace lockstep::transport::tcp
