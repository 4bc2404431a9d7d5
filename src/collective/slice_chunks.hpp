// The slices of a reduction by messages, cut into chunks that are reduced while they are in the cache. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/slices.hpp"

namespace lockstep::collective {

class SliceChunks {
 public:
  static constexpr std::size_t kBytes = 128 * 1024;

  explicit SliceChunks(const Call& call)
      : elements_(kBytes / std::max(size_of(call.dtype), size_of(call.result_dtype))) {
    std::uint32_t before = 0;
    for (std::size_t owner = 0; owner < call.count(); ++owner) {
      slices_.push_back(slice_of(call, owner));
      before_.push_back(before);
      before += count(owner);
      most_ = std::max(most_, count(owner));
    }
  }

  /// Of a chunk, at most.
  std::size_t elements() const { return elements_; }

  std::uint32_t count(std::size_t owner) const {
    return static_cast<std::uint32_t>((slices_[owner].count + elements_ - 1) / elements_);
  }
  /// Of all owners.
  std::uint32_t most() const { return most_; }

  ElementRange range(std::size_t owner, std::uint32_t chunk) const {
    const std::size_t first = chunk * elements_;
    return {slices_[owner].offset + first, std::min(elements_, slices_[owner].count - first)};
  }

  /// Which it is among the chunks of all slices.
  std::uint32_t number(std::size_t owner, std::uint32_t chunk) const { return before_[owner] + chunk; }

 private:
  std::size_t elements_;
  std::uint32_t most_ = 0;
  std::vector<ElementRange> slices_;   // by party
  std::vector<std::uint32_t> before_;  // by party: chunks of the slices before its own
};

}  // namespace lockstep::collective
