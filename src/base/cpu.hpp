// How to wait a moment without giving up the core, and how many cores there are.
#pragma once

namespace lockstep {

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Cores this process may run on (its affinity mask, not the machine's count). At least 1.
int usable_cores();

/// The same together with those on which whoever started this process may run: launchers bind each rank to a few cores,
/// and run on all of them themselves.
int usable_cores_of_job();

}  // namespace lockstep
