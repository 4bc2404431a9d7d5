#include "transport/tcp/mesh.hpp"

#include <fmt/format.h>
#include <poll.h>

#include "lockstep/error.hpp"
#include "net/call.hpp"

namespace lockstep::transport::tcp {

Mesh::Mesh(const TcpOptions& options)
    : options_(options),
      streams_(options.self.size),
      gate_({.self = options.self, .encrypt_data = options.encrypt_data}, {.address = options.listen}) {}

std::vector<PeerStreams> Mesh::connect(const std::vector<net::Address>& addresses, net::Clock::time_point deadline) {
  // A rank calls those below it, and only then answers those above: rank 0 answers at once, so all get through in turn.
  for (std::uint32_t peer = 0; peer < options_.self.rank; ++peer) call(peer, addresses.at(peer), deadline);
  while (!complete()) {
    if (!net::wait_for(gate_.fd(), POLLIN, std::min(deadline, gate_.next_deadline())) && net::Clock::now() >= deadline)
      give_up();
    take_in();
  }
  return std::move(streams_);
}

void Mesh::call(std::uint32_t peer, const net::Address& address, net::Clock::time_point deadline) {
  const net::Call call{.rank = peer, .address = address, .deadline = deadline};
  auto control = net::call_control(tls_, options_.self, call);
  if (options_.encrypt_data) {
    streams_[peer].data = net::call_encrypted_data(tls_, options_.self, call, 0, control.data_key);
  } else {
    streams_[peer].data = net::call_data(options_.self, call, 0, control.data_key);
  }
  streams_[peer].control = std::move(control.stream);
}

void Mesh::take_in() {
  auto news = gate_.step();
  for (auto& arrival : news.arrivals) {
    PeerStreams& streams = streams_[arrival.identity.from];
    (arrival.identity.use == net::Use::data ? streams.data : streams.control) = std::move(arrival.stream);
  }
  // Whoever holds the key and does not fit was told; so is the user of this rank, who may be the one to mend it.
  if (!news.turned_away.empty()) throw net::Refused(news.turned_away.front().refusal);
}

bool Mesh::complete() const {
  for (std::uint32_t peer = 0; peer < streams_.size(); ++peer) {
    if (peer != options_.self.rank && (!streams_[peer].control || !streams_[peer].data)) return false;
  }
  return true;
}

void Mesh::give_up() const {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t peer = options_.self.rank + 1; peer < streams_.size(); ++peer) {
    if (!streams_[peer].control || !streams_[peer].data) missing.push_back(peer);
  }
  throw Error(
      ErrorCode::timeout,
      fmt::format("rank {} waited in vain for rank{} {} to connect. Likely cause: they have not reached the "
                  "start of the engine, or cannot reach {}.",
                  options_.self.rank, missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), address().text()));
}

}  // namespace lockstep::transport::tcp
