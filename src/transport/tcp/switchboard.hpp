// The connections of a rank to all others: what is sent and heard on them, and who is still there.
//
// A pair of ranks has two connections. The control channel (TLS) carries heartbeats and the agreement; the data
// connection carries all that must stay in order. They are watched apart: whoever waits for data reads the latter
// itself, while the keeper's thread sees to the former.
//
// A data connection that is lost is made again, and nothing that was sent on it is lost (lasting_link.hpp). A peer is
// dead when its control channel ends and it had not left, because the kernel closes it when a process ends, or when its
// data connection cannot be made again. One of which nothing is heard for `silence` is stopped if its host still
// acknowledges what is sent to it, and otherwise unreachable. Such a peer may come back to life. It is told no more
// than how the world ended (`tell_lost`), so that it knows why all others are gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/lasting_link.hpp"
#include "transport/tcp/link.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {

/// REQUIRES a lock of its owner's, also for what it calls back.
class Switchboard {
 public:
  struct Callbacks {
    std::function<void(int from, Said said)> heard;
    std::function<void(int peer)> lost;    ///< its health has changed to something else than alive
    std::function<void(int peer)> broken;  ///< its data connection is to be made again
  };

  Switchboard(const TcpOptions& options, std::vector<PeerStreams> streams, Callbacks callbacks);

  /// Sends at once what the system takes, and copies the rest. A peer that is gone is passed over.
  void send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body = {});
  void send_control(int to, std::span<const std::byte> frame);

  /// To poll: something has arrived, or what could not be sent before can be now.
  int data_poll() const { return data_poll_.get(); }
  int control_poll() const { return control_poll_.get(); }

  /// Takes what has arrived, and sends on. Never waits. True when there was something.
  bool pump_data() { return pump(data_poll_, true); }
  bool pump_control() { return pump(control_poll_, false); }

  Health health(int peer) const { return lines_[static_cast<std::size_t>(peer)].health; }
  /// It says so itself.
  void note_left(int peer);

  /// Sends a heartbeat to everybody.
  void beat();
  /// Gives up those of whom nothing has been heard for too long.
  void notice_silence(net::Clock::time_point now);
  /// This rank did not run for a while: it cannot tell whether others did.
  void grant_time(net::Clock::duration time);

  /// The data connection was made again; null: it cannot be.
  void renew(int peer, std::unique_ptr<net::Stream> data);
  /// Gives up those whose data connection has been broken for too long.
  void notice_broken(net::Clock::time_point now);

  /// The last words to those that were given up and may live.
  void tell_lost(std::span<const std::byte> frame);

  /// Data waits for room in a socket.
  bool has_unsent() const;
  /// Data has not reached the systems of all peers.
  bool is_on_its_way() const;

 private:
  struct Line {
    std::unique_ptr<Link> control;
    std::unique_ptr<LastingLink> data;
    std::optional<net::Clock::time_point> broken;  // since when there is no socket for data
    Health health = Health::alive;
    net::Clock::time_point heard;
  };

  int size() const { return static_cast<int>(lines_.size()); }
  Line& line(int peer) { return lines_[static_cast<std::size_t>(peer)]; }
  void watch(int poll, int fd, int peer, bool write, int operation) const;
  template <class Use>
  void with_control(int peer, const Use& use);
  template <class Use>
  void with_data(int peer, const Use& use);
  void give_up(int peer, const net::BadFrame& error);
  void reset_if_asked(int peer);
  void break_off(int peer);
  bool pump(const Fd& poll, bool data);
  void serve_data(int peer);
  void serve_control(int peer);
  template <class AnyLink>
  void take_all(int peer, AnyLink& link);
  void lose(int peer, Health health);

  const TcpOptions options_;
  const int rank_;
  const Fd data_poll_;
  const Fd control_poll_;
  const Callbacks callbacks_;
  std::vector<Line> lines_;  // by rank; this rank's is empty
};

}  // namespace lockstep::transport::tcp
