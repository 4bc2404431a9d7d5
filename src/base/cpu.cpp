#include "base/cpu.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace lockstep {

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

int usable_cores_of_job() {
  cpu_set_t own, starter;
  if (sched_getaffinity(0, sizeof own, &own) != 0 || sched_getaffinity(getppid(), sizeof starter, &starter) != 0) {
    return usable_cores();
  }
  CPU_OR(&own, &own, &starter);
  return std::max(1, CPU_COUNT(&own));
}

}  // namespace lockstep
