#include "transport/tcp/network_survey.hpp"

#include <algorithm>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

using net::Clock;

constexpr auto kLongestAwake = std::chrono::milliseconds(2);  // in which a core does nothing else
// What all ranks of a host send to all others at the start, and each to each.
constexpr std::size_t kFillerOfHost = 2 << 20, kMostFillerOfPair = 256 << 10, kLeastFiller = 4 << 10;
constexpr auto kFillerLimit = std::chrono::seconds(1);
constexpr double kNewsworthy = 1.25;  // times as fast, or as near, as was known

}  // namespace

NetworkSurvey::NetworkSurvey(const TcpOptions& options, std::size_t ranks)
    : options_(options),
      self_(options.self.rank),
      spans_hosts_(std::any_of(options.hosts.begin(), options.hosts.end(),
                               [&](int host) { return host != options.hosts.front(); })),
      known_(ranks),
      bytes_per_trip_(options.bytes_per_trip) {}

std::size_t NetworkSurvey::ranks_here() const {
  return static_cast<std::size_t>(std::count(options_.hosts.begin(), options_.hosts.end(), options_.hosts[self_]));
}

void NetworkSurvey::send_filler(Switchboard& switchboard) const {
  const std::size_t here = ranks_here();
  const std::size_t elsewhere = known_.size() - here;
  const auto bytes = std::clamp(kFillerOfHost / (here * elsewhere), kLeastFiller, kMostFillerOfPair);
  for (std::size_t peer = 0; peer < known_.size(); ++peer) {
    if (options_.hosts[peer] == options_.hosts[self_]) continue;
    for (std::size_t sent = 0; sent < bytes; sent += std::min(bytes - sent, kMostFiller)) {
      const auto filler = pack_filler(std::min(bytes - sent, kMostFiller), options_.self.epoch);
      switchboard.send_data(static_cast<int>(peer), filler);
    }
  }
}

bool NetworkSurvey::is_beginning(Clock::time_point now) const { return spans_hosts_ && now - began_ < kFillerLimit; }

std::optional<Network> NetworkSurvey::look(const Switchboard& switchboard, Clock::time_point now) {
  if (!spans_hosts_ || now < look_at_) return std::nullopt;
  Network& known = known_[self_];
  const bool first = known.rate == 0;
  if (first && switchboard.is_on_its_way() && is_beginning(now)) return std::nullopt;
  look_at_ = now + options_.heartbeat;
  Network seen = switchboard.network(first);
  if (first) seen.rate *= static_cast<double>(ranks_here());  // all of them have sent at the same time
  const bool is_news = seen.rate > known.rate * kNewsworthy || seen.trip * kNewsworthy < known.trip;
  if (seen.trip.count() == 0 || seen.rate <= 0 || !is_news) return std::nullopt;
  known = {.trip = first ? seen.trip : std::min(known.trip, seen.trip), .rate = std::max(known.rate, seen.rate)};
  learn();
  return known;
}

void NetworkSurvey::hear(int from, const Network& network) {
  known_[static_cast<std::size_t>(from)] = network;
  learn();
}

void NetworkSurvey::learn() {
  network_ = {};
  for (const Network& one : known_) {
    network_.trip = std::max(network_.trip, one.trip);
    network_.rate = std::max(network_.rate, one.rate);
  }
  if (options_.bytes_per_trip == 0) bytes_per_trip_ = network_.bytes_per_trip();
  answer_ns_ = std::chrono::nanoseconds(std::min<std::chrono::nanoseconds>(2 * network_.trip, kLongestAwake)).count();
}

}  // namespace lockstep::transport::tcp
