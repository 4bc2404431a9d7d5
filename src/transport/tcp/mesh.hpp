// How the connections of a world are made.
#pragma once

#include <memory>
#include <vector>

#include "net/gate.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace lockstep::transport::tcp {

struct PeerStreams {
  std::unique_ptr<net::Stream> control;
  std::unique_ptr<net::Stream> data;
};

/// Calls the lower ranks and awaits the higher ones; what comes meanwhile is taken in as well.
class Mesh {
 public:
  explicit Mesh(const TcpOptions& options);

  const net::Address& address() const { return gate_.address(); }

  /// By rank; this rank's own are empty.
  std::vector<PeerStreams> connect(const std::vector<net::Address>& addresses, net::Clock::time_point deadline);

 private:
  void call(std::uint32_t peer, const net::Address& address, net::Clock::time_point deadline);
  void take_in();
  bool complete() const;
  [[noreturn]] void give_up() const;

  TcpOptions options_;
  net::TlsContext tls_;
  std::vector<PeerStreams> streams_;
  net::Gate gate_;
};

}  // namespace lockstep::transport::tcp
