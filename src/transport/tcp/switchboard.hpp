// The connections of a rank to all others: what is sent and heard on them, and who is still there.
//
// A pair of ranks has two connections. The control channel (TLS) carries heartbeats and the agreement; the data
// connection carries all that must stay in order. They are watched apart: whoever waits for data reads the latter
// itself, while the keeper's thread sees to the former.
//
// When one of the two is lost, both are made again, and nothing that was sent on them is lost (lasting_link.hpp). They
// go together because the control channel is never idle: should only one side have noticed the loss, the next heartbeat
// tells the other. A peer is dead when a connection is lost, it had not left, and nobody listens at its address any
// more: the kernel closes all of it when a process ends. One of which nothing is heard for `silence` is stopped if its
// host still acknowledges what is sent to it, and otherwise unreachable, as is one that cannot be connected again. Such
// a peer may come back to life. It is told no more than how the world ended (`tell_lost`), so that it knows why all
// others are gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/lasting_link.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {

/// REQUIRES a lock of its owner's, also for what it calls back.
class Switchboard {
 public:
  struct Callbacks {
    std::function<void(int from, Said& said)> heard;
    /// Where so many bytes of data belong that follow the head of a piece; empty: it is not known.
    std::function<std::span<std::byte>(int from, const Piece& head, std::size_t bytes)> place;
    /// The same for what is attached to a notice.
    std::function<std::span<std::byte>(int from, std::size_t bytes)> place_attached;
    std::function<void(int peer)> lost;    ///< its health has changed to something else than alive
    std::function<void(int peer)> broken;  ///< its connections are to be made again; said again until they are
  };

  Switchboard(const TcpOptions& options, std::vector<PeerStreams> streams, Callbacks callbacks);

  /// Sends at once what the system takes, and copies the rest. A peer that is gone is passed over.
  void send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body = {},
                 std::uint64_t operation = 0);
  void send_control(int to, std::span<const std::byte> frame);

  /// As send_data, but the body stays where it is, until `give_back`, which copies what may be needed again.
  void lend_data(int to, std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation);
  void give_back(std::uint64_t operation);
  void abandon(std::uint64_t operation);
  /// Of the operation to which frames were said to belong.
  bool has_sent(std::uint64_t operation) const;
  /// Nothing is written there any more.
  void take_back(int from, std::span<const std::byte> range);

  /// To poll: something has arrived, or what could not be sent before can be now.
  int data_poll() const { return data_poll_.get(); }
  int control_poll() const { return control_poll_.get(); }

  /// Takes what has arrived, and sends on. Never waits. True when there was something.
  bool pump_data();
  bool pump_control() { return pump(&Line::control); }

  Health health(int peer) const { return lines_[static_cast<std::size_t>(peer)].health; }
  /// It says so itself.
  void note_left(int peer);
  /// This rank has said so.
  void note_leaving() { leaving_ = true; }

  /// Sends a heartbeat to everybody. Where the network seems to be away, connections are made anew, which is quicker
  /// than to wait for the old ones once it is back: they try again after twice as long each time. So they are where it
  /// swallows data alone; a peer of which that is true again afterwards is unreachable.
  void beat();
  /// Gives up those of whom nothing has been heard for too long.
  void notice_silence(net::Clock::time_point now);
  /// This rank did not run for a while: it cannot tell whether others did.
  void grant_time(net::Clock::duration time);

  /// The connections were made again.
  void renew(int peer, PeerStreams streams);
  /// It has ended, as nobody listens at its address any more.
  void note_gone(int peer);
  /// Gives up those whose connections have been broken for too long.
  void notice_broken(net::Clock::time_point now);

  /// The last words to those that were given up and may live.
  void tell_lost(std::span<const std::byte> frame);

  /// Data waits for room in a socket.
  bool has_unsent() const;
  /// Data has not reached the systems of all peers.
  bool is_on_its_way() const;

  /// Of the ways to other hosts: the longest round trip, and the rate of the fastest connection, or of all together.
  Network network(bool together) const;

 private:
  struct Line {
    std::unique_ptr<LastingLink> control;
    std::unique_ptr<LastingLink> data;
    std::optional<net::Clock::time_point> broken;  // when they were lost; until something comes on new ones
    net::Clock::time_point called;                 // since then
    net::Clock::time_point swallowed;              // when the network has last done that to data
    std::uint64_t had = 0;                         // frames, of which the peer had told then
    Health health = Health::alive;
    net::Clock::time_point heard;
  };

  using Which = std::unique_ptr<LastingLink> Line::*;  // of the two

  int size() const { return static_cast<int>(lines_.size()); }
  Line& line(int peer) { return lines_[static_cast<std::size_t>(peer)]; }
  void watch(int poll, int fd, int peer, bool write, int operation) const;
  template <class Use>
  void with_link(int peer, Which which, const Use& use);
  bool serve(int peer, Which which);  // whether something was read
  void give_up(int peer, const net::BadFrame& error);
  void reset_if_asked(int peer);
  void break_off(int peer);
  bool is_cut_off(int peer) const;
  bool is_on_this_host(int peer) const;
  bool is_quiet(int peer) const;
  void notice_swallowed(int peer);
  void mind_losses(int peer);
  bool pump(Which which);
  bool take_batch(int peer, LastingLink& link);  // whether something was read
  void take_rest(int peer, Which which);
  void replace(int peer, Which which, std::unique_ptr<net::Stream> stream);
  const Fd& poll_of(Which which) const;
  void lose(int peer, Health health);

  const TcpOptions options_;
  const int rank_;
  const Fd data_poll_;
  const Fd control_poll_;
  const Callbacks callbacks_;
  std::vector<Line> lines_;  // by rank; this rank's is empty
  bool leaving_ = false;
};

}  // namespace lockstep::transport::tcp
