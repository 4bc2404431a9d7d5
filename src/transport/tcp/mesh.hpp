// How the connections of a world are made, and lost ones made again.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/gate.hpp"
#include "transport/tcp/bells.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace lockstep::transport::tcp {

struct PeerStreams {
  std::unique_ptr<net::Stream> control;
  std::unique_ptr<net::Stream> data;
};

/// Calls the lower ranks and awaits the higher ones; what comes meanwhile is taken in as well. The gate stays open, for
/// ranks that call again.
class Mesh {
 public:
  explicit Mesh(const TcpOptions& options);
  ~Mesh();

  const net::Address& address() const { return gate_.address(); }

  /// By rank; this rank's own are empty.
  std::vector<PeerStreams> connect(const std::vector<net::Address>& addresses, net::Clock::time_point deadline);

  /// Whether this rank is the one of the two that calls when the data connection is lost; the other waits.
  bool calls(int peer) const { return static_cast<std::uint32_t>(peer) < options_.self.rank; }

  /// Makes the data connection anew, in the background. REQUIRES the last call's result was taken. Strikes `done` when
  /// it is there or cannot be made.
  void call_again(int peer, const Bell& done);

  struct Renewed {
    int peer = 0;
    std::unique_ptr<net::Stream> data;  ///< null: it cannot be reached
  };

  /// Connections that were made again, by this side or the other. Never waits; to be called when `fd` is readable.
  std::vector<Renewed> renewed();
  int fd() const { return gate_.fd(); }

 private:
  std::unique_ptr<net::Stream> call_data(std::uint32_t peer, net::Clock::time_point deadline) const;
  void call(std::uint32_t peer, net::Clock::time_point deadline);
  void take_in();
  bool complete() const;
  [[noreturn]] void give_up() const;

  TcpOptions options_;
  net::TlsContext tls_;
  std::vector<net::Address> addresses_;
  std::vector<net::Digest> data_keys_;  // of the control channels to those that this rank has called
  std::vector<PeerStreams> streams_;
  net::Gate gate_;
  std::vector<std::thread> calls_;  // by rank that is called
  std::mutex mutex_;
  std::vector<Renewed> renewed_;  // protected by mutex_
};

}  // namespace lockstep::transport::tcp
