// What lies between the hosts of a world: its ranks find it out together. It begins with a little data to all other
// hosts at once, which also lets TCP find out how much it may send; afterwards what the program sends tells the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/tcp/switchboard.hpp"

namespace lockstep::transport::tcp {

/// REQUIRES a lock of its owner's, except for what is said to be for any thread.
class NetworkSurvey {
 public:
  NetworkSurvey(const TcpOptions& options, std::size_t ranks);

  bool spans_hosts() const { return spans_hosts_; }

  void send_filler(Switchboard& switchboard) const;

  /// The first second of this rank, in which the filler of the others arrives, unless one takes longer to start. It has
  /// to be read at once: where it fills the receiver's window, that is what TCP takes for the rate of the network, and
  /// for long.
  bool is_beginning(net::Clock::time_point now) const;

  /// To be called now and then. What is news, and to be told to all others.
  std::optional<Network> look(const Switchboard& switchboard, net::Clock::time_point now);

  /// What another rank takes it for.
  void hear(int from, const Network& network);

  /// The way to the farthest host and the fastest port: what all have in the end, when everybody has told everybody.
  const Network& network() const { return network_; }

  /// For any thread.
  std::size_t bytes_per_trip() const { return bytes_per_trip_; }
  std::chrono::nanoseconds answer_time() const { return std::chrono::nanoseconds(answer_ns_); }

 private:
  std::size_t ranks_here() const;
  void learn();

  const TcpOptions options_;
  const std::size_t self_;
  const bool spans_hosts_;
  const net::Clock::time_point began_ = net::Clock::now();
  net::Clock::time_point look_at_ = began_;
  std::vector<Network> known_;  // by rank: what each takes the network for
  Network network_;             // as all have told
  std::atomic<std::size_t> bytes_per_trip_ = 0;
  std::atomic<std::int64_t> answer_ns_ = 0;
};

}  // namespace lockstep::transport::tcp
