#include "trace/ticks.hpp"

#include <fstream>
#include <string>

namespace lockstep::trace {

bool processor_counter_is_steady() {
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return source == "tsc";
}

ClockPoint ClockPoint::now() {
  const Ticks before = ticks();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  const Ticks after = ticks();
  return {.at = before + (after - before) / 2, .steady_ns = std::chrono::nanoseconds(steady).count()};
}

TickScale::TickScale(const ClockPoint& first, const ClockPoint& second)
    : first_(first),
      ns_per_tick_(second.at > first.at ? static_cast<double>(second.steady_ns - first.steady_ns) /
                                              static_cast<double>(second.at - first.at)
                                        : 1.0) {}

}  // namespace lockstep::trace
