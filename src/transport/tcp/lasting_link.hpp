// A connection to a peer that outlives its socket. Nothing here waits.
//
// Frames are numbered by counting, on either side. The sender keeps each until the receiver has said that it has it,
// which it does now and then. When the socket is lost and another takes its place, both first say how many frames they
// have; what the other does not have is sent again. So every frame arrives once and in order, however often the socket
// is lost.
//
// What is kept is no more than the sockets hold, and what the receiver has not yet confirmed. Data that is lent is not
// kept but read where it lies, for the second time only if the receiver does not have it.
//
// Frames that wait go together, in one call of the system, with what this class has to say between them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/spare_memory.hpp"
#include "transport/tcp/link.hpp"

namespace lockstep::transport::tcp {

/// Copies of what was lent; one that several peers need is made once.
class Copies {
 public:
  using Copy = std::shared_ptr<const SpareMemory>;

  Copy of(std::span<const std::byte> data);

 private:
  std::map<std::pair<const std::byte*, std::size_t>, Copy> copies_;
};

class LastingLink {
 public:
  LastingLink(std::unique_ptr<net::Stream> stream, std::uint32_t epoch);

  /// Copies the frame, and sends at once what the system takes. All that touch the socket throw net::ConnectionLost.
  /// `operation`: what it belongs to, if anybody will ask.
  void send(std::span<const std::byte> head, std::span<const std::byte> body = {}, std::uint64_t operation = 0);
  void flush();

  /// The same, but the body stays where it is, until `give_back`.
  void lend(std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation);
  /// Copies what is lent for the operation and may be needed again.
  void give_back(std::uint64_t operation, Copies& copies);
  /// Nobody wants the operation any more: what was not begun of it is not sent.
  void abandon(std::uint64_t operation);
  /// Whether the system has taken all frames of the operation.
  bool has_sent(std::uint64_t operation) const;

  /// The next frame that has arrived, in batches like Link's. Also throws net::BadFrame.
  std::optional<net::Frame> receive();
  void begin_batch() {
    if (connected()) socket_->begin_batch();
  }
  void end_batch() {
    if (connected()) socket_->end_batch();
  }

  /// Where the data of frames of one kind belongs, as in net::FrameReader.
  void place(std::uint32_t kind, std::size_t prefix, net::FrameReader::FindPlace find);
  void take_back(std::span<const std::byte> range) {
    if (connected()) socket_->reader().take_back(range);
  }

  /// The socket is lost: nothing is sent or received until another takes its place.
  void drop_socket();
  void replace_socket(std::unique_ptr<net::Stream> stream);

  /// From this socket.
  std::uint64_t bytes_read() const { return connected() ? socket_->bytes_read() : 0; }

  /// Bytes of whole frames, since the socket took its place.
  std::uint64_t received_on_socket() const { return received_on_socket_; }
  bool connected() const { return socket_ != nullptr; }
  bool has_unsent() const { return next_ < kept_.size() || !words_.empty(); }
  /// The socket would take more, if it had room.
  bool wants_to_send() const { return connected() && (!words_.empty() || (next_ < kept_.size() && !resuming_)); }
  bool is_unacknowledged() const { return connected() && socket_->is_unacknowledged(); }
  bool is_swallowed(net::Clock::time_point now, net::Clock::duration limit) {
    return connected() && socket_->is_swallowed(now, limit);
  }
  /// As Link's, for this socket and those that take its place.
  void share_evenly();
  bool mind_losses() { return connected() && socket_->mind_losses(); }
  Network network() const { return connected() ? socket_->network() : Network{}; }
  /// Frames of which the peer has said that it has them.
  std::uint64_t confirmed() const { return confirmed_; }
  /// Something has not reached the peer's system, or that is not known because the socket was lost.
  bool is_on_its_way() const { return connected() ? has_unsent() || is_unacknowledged() : !kept_.empty(); }
  int fd() const { return socket_->fd(); }

 private:
  // A frame that is kept.
  struct Kept {
    std::vector<std::byte> head;
    std::span<const std::byte> body = {};
    Copies::Copy copy = {};  // where the body lies, unless it is lent
    std::uint64_t operation = 0;

    std::size_t size() const { return head.size() + body.size(); }
  };

  void keep(std::span<const std::byte> head, std::span<const std::byte> body, Copies::Copy copy,
            std::uint64_t operation);
  std::size_t gather();
  void gather(const Kept& frame, std::size_t from);
  void note_gone(std::size_t bytes);
  void confirm_if_due(std::size_t bytes);
  void go_on_after(std::uint64_t frames);
  void forget_until(std::uint64_t frames);

  const std::uint32_t epoch_;
  std::unique_ptr<Link> socket_;
  bool shares_ = false;    // a port, with connections of other hosts
  bool resuming_ = false;  // the peer has not yet said on this socket what it has

  struct Placing {
    std::uint32_t kind = 0;
    std::size_t prefix = 0;
    net::FrameReader::FindPlace find;
  };
  std::vector<Placing> placings_;

  std::deque<Kept> kept_;                          // not confirmed
  std::uint64_t confirmed_ = 0;                    // frames before the first of them
  std::size_t next_ = 0;                           // of kept_: to be sent next
  std::size_t sent_of_next_ = 0;                   // bytes
  bool in_frame_ = false;                          // the socket has been given a part of it, or waits with it
  std::vector<std::byte> words_;                   // of this class's own; they go between two frames
  std::vector<std::span<const std::byte>> parts_;  // of what is offered to the socket
  std::vector<std::vector<std::byte>> spare_;      // for heads

  std::uint64_t received_ = 0;  // frames
  std::uint64_t told_ = 0;      // how many of them the peer knows of
  std::size_t untold_bytes_ = 0;
  std::uint64_t received_on_socket_ = 0;
};

}  // namespace lockstep::transport::tcp
