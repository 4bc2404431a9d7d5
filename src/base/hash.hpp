// A stable 64-bit hash (XXH3) for identities that travel between ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

class Hasher {
 public:
  explicit Hasher(std::uint64_t seed = 0) : state_(seed) {}

  void add(const void* data, std::size_t bytes) { state_ = XXH3_64bits_withSeed(data, bytes, state_); }
  void add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    add(text.data(), text.size());
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void add(T value) { add(&value, sizeof value); }

  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep
