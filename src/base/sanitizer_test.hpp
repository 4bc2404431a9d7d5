// Which sanitizer a test runs under, asked of the linker: the objects of a test may be linked with and without one.
#pragma once

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers' own names
void __asan_init() __attribute__((weak));
void __tsan_init() __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}

namespace lockstep {

inline bool under_address_sanitizer() { return __asan_init != nullptr; }
inline bool under_thread_sanitizer() { return __tsan_init != nullptr; }

/// Everything is several times slower: tests that repeat something may do so less often.
inline bool under_sanitizer() { return under_address_sanitizer() || under_thread_sanitizer(); }

}  // namespace lockstep
