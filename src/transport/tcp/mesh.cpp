#include "transport/tcp/mesh.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/census.hpp"
#include "lockstep/error.hpp"
#include "net/call.hpp"

namespace lockstep::transport::tcp {
namespace {

constexpr auto kRenewalLimit = std::chrono::seconds(2);  // for a call to one that lives

}  // namespace

Mesh::Mesh(const TcpOptions& options)
    : options_(options),
      data_keys_(options.self.size),
      streams_(options.self.size),
      gate_({.self = options.self, .encrypt_data = options.encrypt_data}, {.address = options.listen}),
      calls_(options.self.size) {}

std::vector<PeerStreams> Mesh::connect(const std::vector<net::Address>& addresses, net::Clock::time_point deadline) {
  // A rank calls those below it, and only then answers those above: rank 0 answers at once, so all get through in turn.
  addresses_ = addresses;
  for (std::uint32_t peer = 0; peer < options_.self.rank; ++peer) call(peer, deadline);
  while (!complete()) {
    if (!net::wait_for(gate_.fd(), POLLIN, std::min(deadline, gate_.next_deadline())) && net::Clock::now() >= deadline)
      give_up();
    take_in();
  }
  return std::move(streams_);
}

void Mesh::call(std::uint32_t peer, net::Clock::time_point deadline) {
  const net::Call call{.rank = peer, .address = addresses_.at(peer), .deadline = deadline};
  auto control = net::call_control(tls_, options_.self, call);
  data_keys_[peer] = control.data_key;
  streams_[peer].control = std::move(control.stream);
  streams_[peer].data = call_data(peer, deadline);
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

Mesh::~Mesh() {
  for (std::thread& call : calls_) {
    if (call.joinable()) call.join();
  }
}

std::unique_ptr<net::Stream> Mesh::call_data(std::uint32_t peer, net::Clock::time_point deadline) const {
  const net::Call call{.rank = peer, .address = addresses_.at(peer), .deadline = deadline};
  const net::Digest& key = data_keys_.at(peer);
  if (options_.encrypt_data) return net::call_encrypted_data(tls_, options_.self, call, 0, key);
  return net::call_data(options_.self, call, 0, key);
}

void Mesh::call_again(int peer, const Bell& done) {
  std::thread& thread = calls_[static_cast<std::size_t>(peer)];
  if (thread.joinable()) thread.join();  // it has given its result before
  thread = std::thread([this, peer, &done] {
    leave_out_of_census(::gettid());
    Renewed result{.peer = peer, .data = nullptr};
    try {
      result.data = call_data(static_cast<std::uint32_t>(peer), net::Clock::now() + kRenewalLimit);
    } catch (const Error&) {
    }
    {
      const std::lock_guard lock(mutex_);
      renewed_.push_back(std::move(result));
    }
    done.strike();
    return_to_census(::gettid());
  });
}

std::vector<Mesh::Renewed> Mesh::renewed() {
  std::vector<Renewed> all;
  {
    const std::lock_guard lock(mutex_);
    all = std::exchange(renewed_, {});
  }
  for (net::Arrival& arrival : gate_.step().arrivals) {
    if (arrival.identity.use == net::Use::data)
      all.push_back({.peer = static_cast<int>(arrival.identity.from), .data = std::move(arrival.stream)});
  }
  return all;
}

}  // namespace lockstep::transport::tcp
