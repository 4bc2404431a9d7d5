// How a reduction in shared memory is cut, and who does what, so that all who work on it agree.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/transport.hpp"

namespace lockstep::collective {

inline constexpr std::uint32_t kChunksAtOnce = 8;  ///< before other operations get their turn

/// One chunk for each of the parties, unless that is too little to be worth claiming, or so much that a rank which
/// comes late would leave much undone. A chunk is read from, and written to, every party, so with more of them a
/// smaller one is as much work. Whole cache lines.
inline std::size_t chunk_bytes(std::size_t bytes, std::size_t parties) {
  constexpr std::size_t kLine = 128;
  constexpr std::size_t kLeastWork = 64 * 1024;  // of all parties
  constexpr std::size_t kMost = 512 * 1024;
  const std::size_t least = std::clamp(kLeastWork / parties / kLine * kLine, 4 * kLine, std::size_t{16 * 1024});
  return std::clamp(bytes / parties / kLine * kLine, least, kMost);
}

/// Chunks that any rank may do. Each has a share of them, which it does first, so that ranks that run side by side keep
/// out of each other's way and of each other's cache lines; then it helps those that have not come so far. So a rank
/// that is descheduled, or goes on computing, delays nobody.
///
/// It allocates nothing, and all state is in two scratch words of each rank: any number of these can look at them.
class Chunks {
 public:
  using Words = std::atomic<std::uint32_t>*;

  /// `words` of each rank that takes part, in an order that is the same on all; `self`: which of them is this rank. The
  /// span outlives the object.
  Chunks(std::span<const Words> words, std::size_t self, std::uint32_t chunks)
      : words_(words), self_(self), chunks_(chunks) {}

  /// A look, which costs less than trying to claim one.
  bool any_left() const {
    for (std::size_t owner = 0; owner < words_.size(); ++owner) {
      if (has_left(owner)) return true;
    }
    return false;
  }

  /// The next one to do, if there is any. It is this rank's alone.
  std::optional<std::uint32_t> claim() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::size_t owner = self_ + i < words_.size() ? self_ + i : self_ + i - words_.size();
      if (!has_left(owner)) continue;  // claiming past the end would make the counter grow for ever
      const std::uint32_t claimed = words_[owner][kNext].fetch_add(1, std::memory_order_relaxed);
      if (claimed < share_of(owner)) return share_begin(owner) + claimed;
    }
    return std::nullopt;
  }

  /// A claimed one is done. Sequentially consistent, so that of the ranks that end last at least one sees that all is
  /// complete, and wakes those who sleep.
  void done() {
    std::atomic<std::uint32_t>& mine = words_[self_][kDone];
    mine.store(mine.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  }

  /// Does chunks by `work(chunk)`, which says whether it could, until `most` are done or none is left to claim. False
  /// when one could not be done, or the memory is no longer this rank's to touch: then the verdict over who is gone
  /// ends the operation.
  template <class Work>
  bool do_some(transport::SharedMemory& shared, std::uint32_t most, Work&& work) {
    for (std::uint32_t i = 0; i < most && any_left(); ++i) {
      const transport::Access access(&shared);
      if (!access) return false;
      const std::optional<std::uint32_t> chunk = claim();
      if (!chunk) break;
      if (!work(*chunk)) return false;
      done();
    }
    return true;
  }

  bool complete() const {
    std::uint32_t sum = 0;
    for (Words words : words_) sum += words[kDone].load(std::memory_order_seq_cst);
    return sum == chunks_;
  }

 private:
  enum : std::size_t { kNext, kDone };

  std::uint32_t share_begin(std::size_t owner) const {
    return static_cast<std::uint32_t>(owner * chunks_ / words_.size());
  }
  std::uint32_t share_of(std::size_t owner) const { return share_begin(owner + 1) - share_begin(owner); }
  bool has_left(std::size_t owner) const {
    return words_[owner][kNext].load(std::memory_order_relaxed) < share_of(owner);
  }

  std::span<const Words> words_;
  std::size_t self_;
  std::uint32_t chunks_;
};

}  // namespace lockstep::collective
