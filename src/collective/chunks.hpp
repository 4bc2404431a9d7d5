// How a reduction in shared memory is cut, so that all who work on it cut alike. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::collective {

/// One chunk for each of the parties, unless that is too little to be worth claiming, or so much that a rank which
/// comes late would leave much undone. Whole cache lines.
inline std::size_t chunk_bytes(std::size_t bytes, std::size_t parties) {
  constexpr std::size_t kLine = 128;
  constexpr std::size_t kLeast = 16 * 1024;
  constexpr std::size_t kMost = 512 * 1024;
  return std::clamp(bytes / parties / kLine * kLine, kLeast, kMost);
}

}  // namespace lockstep::collective
