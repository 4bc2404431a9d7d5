// What the fuzz targets share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep {

/// Ends the run: the fuzzer keeps the input.
inline void must(bool holds, const char* otherwise) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", otherwise);
  std::abort();
}

inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

}  // namespace lockstep
