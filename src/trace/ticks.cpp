#include "trace/ticks.hpp"

#include <fstream>
#include <limits>
#include <string>

namespace lockstep::trace {

bool processor_counter_is_steady() {
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return source == "tsc";
}

// The narrowest of a few tries: in one of them the system may have put the thread to sleep between the two clocks.
ClockPoint ClockPoint::now() {
  ClockPoint best;
  Ticks narrowest = std::numeric_limits<Ticks>::max();
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Ticks before = ticks();
    const auto steady = std::chrono::steady_clock::now().time_since_epoch();
    const Ticks width = ticks() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    best = {.at = before + width / 2, .steady_ns = std::chrono::nanoseconds(steady).count()};
  }
  return best;
}

TickScale::TickScale(const ClockPoint& first, const ClockPoint& second)
    : first_(first),
      ns_per_tick_(second.at > first.at ? static_cast<double>(second.steady_ns - first.steady_ns) /
                                              static_cast<double>(second.at - first.at)
                                        : 1.0) {}

}  // namespace lockstep::trace
