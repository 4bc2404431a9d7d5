// The cheapest steady clock of the machine. Recording takes raw ticks; only reading a record turns them into time.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lockstep::trace {

using Ticks = std::int64_t;

/// Whether the kernel itself trusts the processor's counter: then it runs evenly and alike on all cores.
bool processor_counter_is_steady();

/// 12 ns where the processor's counter can be used, the cost of steady_clock (35 ns) elsewhere. Never 0.
inline Ticks ticks() {
#if defined(__x86_64__)
  static const bool steady = processor_counter_is_steady();
  if (steady) return static_cast<Ticks>(__rdtsc());
#endif
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

/// One moment on both clocks.
struct ClockPoint {
  Ticks at = 0;
  std::int64_t steady_ns = 0;

  static ClockPoint now();
};

/// The line through two moments. The kernel slews steady_clock, so the rate is not a constant: whoever converts for
/// long takes a new point now and then, and is continuous because each line begins where the last one ended.
class TickScale {
 public:
  TickScale(const ClockPoint& first, const ClockPoint& second);

  std::int64_t steady_ns(Ticks at) const { return first_.steady_ns + nanoseconds(at - first_.at); }
  std::int64_t nanoseconds(Ticks length) const {
    return static_cast<std::int64_t>(static_cast<double>(length) * ns_per_tick_);
  }

 private:
  ClockPoint first_;
  double ns_per_tick_;
};

}  // namespace lockstep::trace
