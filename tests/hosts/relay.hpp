// The network of test hosts that are some time away from each other: the kernel's own way to delay packets (netem) is
// not compiled into every kernel.
//
// Each host's interface is a TAP device, whose other end this relay holds. It is a switch that keeps every frame for a
// while: its first bit leaves `delay` after it has come, or after the last bit of the frame ahead of it, and the host
// gets it with its last bit.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace lockstep::hosts {

struct LinkShape {
  std::chrono::nanoseconds delay{0};  ///< one way
  std::int64_t bits_per_second = 0;   ///< into each host; 0: without limit
};

class Relay {
 public:
  /// Makes an interface link0, link1, ... per host in the caller's network namespace; from there they may be moved.
  /// Throws Error(system).
  Relay(int hosts, LinkShape shape);

  /// Carries frames, and does not return.
  [[noreturn]] void run();

 private:
  using Clock = std::chrono::steady_clock;
  using Frame = std::vector<std::byte>;
  using Address = std::array<std::byte, 6>;

  struct Departure {
    Clock::time_point at;
    Frame frame;
  };

  struct Port {
    Fd tap;
    Address address{};               ///< of the host behind it, learnt from what it sends
    std::deque<Departure> queue;     ///< to the host; by time
    Clock::time_point free_after{};  ///< until then earlier frames occupy the port
  };

  void take_arrivals(std::size_t from);
  void forward(std::size_t from, const Frame& frame);
  std::chrono::nanoseconds time_on_the_wire(std::size_t bytes) const;
  void enqueue(Port& port, const Frame& frame);
  void deliver_due();
  Clock::time_point next_departure() const;

  LinkShape shape_;
  std::vector<Port> ports_;
  Frame arrival_;
};

}  // namespace lockstep::hosts
