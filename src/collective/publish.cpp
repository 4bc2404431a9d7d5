#include "collective/publish.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Sanitizers see what memcpy does, not what an instruction of ours does.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define LOCKSTEP_SANITIZED 1
#endif
#endif

namespace lockstep::collective {

#if defined(__x86_64__) && !defined(LOCKSTEP_SANITIZED)

namespace {

// Below it, the block copy's beginning costs more than it saves.
constexpr std::size_t kLeastForBlockCopy = 2048;

// "Enhanced REP MOVSB": without it the instruction moves byte by byte.
bool has_block_copy() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1U << 9)) != 0;
}

}  // namespace

void publish(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const bool by_block = has_block_copy();
  if (!by_block || bytes < kLeastForBlockCopy) {
    std::memcpy(to, from, bytes);
    return;
  }
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

#else

void publish(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace lockstep::collective
