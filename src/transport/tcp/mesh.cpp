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
// The system would repeat a call that was lost only after a second.
constexpr auto kFirstAnswer = std::chrono::milliseconds(500);

}  // namespace

Mesh::Mesh(const TcpOptions& options)
    : options_(options),
      streams_(options.self.size),
      gate_({.self = options.self, .encrypt_data = options.encrypt_data}, {.address = options.listen}),
      calls_(options.self.size) {}

std::vector<PeerStreams> Mesh::connect(const std::vector<net::Address>& addresses, net::Clock::time_point deadline) {
  // A rank calls those below it, and only then answers those above: rank 0 answers at once, so all get through in turn.
  addresses_ = addresses;
  for (std::uint32_t peer = 0; peer < options_.self.rank; ++peer)
    streams_[peer] = call({.rank = peer, .address = addresses_.at(peer), .deadline = deadline});
  while (!complete()) {
    if (!net::wait_for(gate_.fd(), POLLIN, std::min(deadline, gate_.next_deadline())) && net::Clock::now() >= deadline)
      give_up();
    take_in();
  }
  return std::exchange(streams_, std::vector<PeerStreams>(options_.self.size));
}

PeerStreams Mesh::call(const net::Call& call) const {
  auto control = net::call_control(tls_, options_.self, call);
  PeerStreams streams{.control = std::move(control.stream), .data = nullptr};
  if (options_.encrypt_data) {
    streams.data = net::call_encrypted_data(tls_, options_.self, call, 0, control.data_key);
  } else {
    streams.data = net::call_data(options_.self, call, 0, control.data_key);
  }
  return streams;
}

void Mesh::take_in() {
  auto news = gate_.step();
  for (auto& arrival : news.arrivals) {
    PeerStreams& streams = streams_[arrival.identity.from];
    (arrival.identity.use == net::Use::data ? streams.data : streams.control) = std::move(arrival.stream);
  }
  // Whoever holds the key and does not fit was told; so is the user of this rank, who may be the one to mend it. One of
  // another epoch is none of this world's: it may be a rank that was given up and has come back to life.
  for (const net::TurnedAway& caller : news.turned_away) {
    if (caller.refusal.reason != net::Reason::epoch) throw net::Refused(caller.refusal);
  }
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
    if (!call.joinable()) continue;
    ::getpid() == process_ ? call.join() : call.detach();  // a forked child has no such thread
  }
}

void Mesh::call_again(int peer, const Bell& done) {
  const std::lock_guard lock(mutex_);
  std::thread& thread = calls_[static_cast<std::size_t>(peer)];
  if (thread.joinable()) return;
  thread = std::thread([this, peer, &done] {
    leave_out_of_census(this_thread());
    Renewed result = try_again(peer);
    {
      const std::lock_guard result_lock(mutex_);
      renewed_.push_back(std::move(result));
    }
    done.strike();
    return_to_census(this_thread());
  });
}

Mesh::Renewed Mesh::try_again(int peer) const {
  Renewed result{.peer = peer};
  const net::Call again{.rank = static_cast<std::uint32_t>(peer),
                        .address = addresses_.at(static_cast<std::size_t>(peer)),
                        .deadline = net::Clock::now() + kRenewalLimit,
                        .first_answer = kFirstAnswer};
  try {
    if (calls(peer)) {
      result.streams = call(again);
    } else {
      net::call_control(tls_, options_.self, again);
    }
  } catch (const net::NobodyListens&) {
    result.is_gone = true;
  } catch (const net::HandshakeFailed&) {  // somebody else has got its port
    result.is_gone = true;
  } catch (const Error&) {
  }
  return result;
}

std::vector<Mesh::Renewed> Mesh::renewed() {
  std::vector<Renewed> all;
  {
    const std::lock_guard lock(mutex_);
    all = std::exchange(renewed_, {});
    for (const Renewed& one : all)
      calls_[static_cast<std::size_t>(one.peer)].join();  // there is nothing left to wait for
  }
  for (net::Arrival& arrival : gate_.step().arrivals) take_called(std::move(arrival), all);
  return all;
}

// The data connection follows its control channel. What comes of a lower rank was a question, which the gate has
// answered.
void Mesh::take_called(net::Arrival arrival, std::vector<Renewed>& all) {
  const auto peer = static_cast<int>(arrival.identity.from);
  if (calls(peer)) return;
  PeerStreams& streams = streams_[arrival.identity.from];
  if (arrival.identity.use == net::Use::control) {
    streams.control = std::move(arrival.stream);
  } else if (streams.control) {
    streams.data = std::move(arrival.stream);
    all.push_back({.peer = peer, .streams = std::exchange(streams, {})});
  }
}

}  // namespace lockstep::transport::tcp
