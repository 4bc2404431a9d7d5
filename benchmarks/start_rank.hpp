// What a rank of benchmarks/start.py says once it has been through its first collective.
#pragma once

#include <cstdio>
#include <ctime>

/// Prints the time on the clock that all processes share. `sum` shows that the collective was one.
inline void say_time(double sum) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("at %lld sum %g\n", static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec, sum);
  std::fflush(stdout);
}
