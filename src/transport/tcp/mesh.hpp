// How the connections of a world are made, and lost ones made again.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/call.hpp"
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

  /// Calls a peer whose connections are lost, in the background, unless that is under way. The higher rank of the two
  /// makes them anew; the lower one, which is called, only asks whether the other still lives. Strikes `done` when
  /// there is a result. From any thread.
  void call_again(int peer, const Bell& done);

  struct Renewed {
    int peer = 0;
    PeerStreams streams = {};  ///< empty: none were made
    bool is_gone = false;      ///< nobody listens at its address any more
  };

  /// What has come of calls, of this side or the other. Never waits; to be called when `fd` is readable, by one thread,
  /// and under no lock that others need: it is also busy with strangers.
  std::vector<Renewed> renewed();
  int fd() const { return gate_.fd(); }

 private:
  bool calls(int peer) const { return static_cast<std::uint32_t>(peer) < options_.self.rank; }
  PeerStreams call(const net::Call& call) const;
  Renewed try_again(int peer) const;
  void take_in();
  void take_called(net::Arrival arrival, std::vector<Renewed>& all);
  bool complete() const;
  [[noreturn]] void give_up() const;

  const pid_t process_ = ::getpid();
  TcpOptions options_;
  net::TlsContext tls_;
  std::vector<net::Address> addresses_;
  std::vector<PeerStreams> streams_;  // by rank: what there is of a pair of which one is still to come
  net::Gate gate_;
  std::mutex mutex_;
  // Protected by mutex_:
  std::vector<std::thread> calls_;  // by rank that is called; one whose result was taken has come to its end
  std::vector<Renewed> renewed_;
};

}  // namespace lockstep::transport::tcp
