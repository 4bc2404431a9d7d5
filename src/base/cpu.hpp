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

}  // namespace lockstep
