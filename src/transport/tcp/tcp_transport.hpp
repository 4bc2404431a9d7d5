// Ranks of several hosts: every rank has a connection to every other.
//
// A pair has two connections. The control channel (TLS) carries heartbeats and the agreement (agreement.hpp). The data
// connection carries all that must stay in order: notices, messages, what a rank declares while it waits, and that it
// leaves. Both are made by the higher rank of the pair.
//
// Whoever waits reads: a thread that asks for notices or messages takes what has arrived from the sockets itself, and
// one that sleeps polls them, so a small message changes no thread. A thread of the transport's own, the keeper, sees
// to the control channels: it sends heartbeats and notices who has gone silent. When nobody waits who would, it also
// sends on what did not fit into a socket, and reads what has come: at once at the beginning, later now and then.
//
// Who counts as gone, and when, is in switchboard.hpp; the verdict and the seats of survivors are in agreement.hpp.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "net/gate.hpp"
#include "transport/transport.hpp"

namespace lockstep::transport {

struct TcpOptions {
  net::Membership self;
  net::Address listen = net::Address::loopback();
  bool encrypt_data = false;
  std::vector<int> hosts = {};  ///< by rank: the same number for those that share a host; empty: all do
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{4'000};  ///< after which a peer that says nothing is given up
  std::size_t bytes_per_trip = 0;            ///< for tests: what this rank takes the network for
  std::size_t reset_after_bytes = 0;         ///< for tests: a data connection is reset when so much has come
  std::function<void()> in_keeper = {};      ///< for tests: called in every round of the keeper
};

namespace tcp {
class Mesh;
}

/// A rank that listens and is not yet connected: its address is to be told to the others.
class TcpDoor {
 public:
  explicit TcpDoor(const TcpOptions& options);
  ~TcpDoor();
  TcpDoor(TcpDoor&&) noexcept;

  const net::Address& address() const;

  /// Connects to all others, whose addresses are given by rank, as are their hosts (TcpOptions). Throws net::Refused in
  /// the words of a rank that does not take this one in, and Error(timeout) with the ranks that are missing.
  static std::unique_ptr<Transport> connect(TcpDoor door, const std::vector<net::Address>& addresses,
                                            net::Clock::time_point deadline, std::vector<int> hosts = {});

 private:
  TcpOptions options_;
  std::unique_ptr<tcp::Mesh> mesh_;
};

}  // namespace lockstep::transport
