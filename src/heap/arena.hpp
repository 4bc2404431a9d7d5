// Hands out blocks of one rank's part of the shared memory. Its books are private to the owner.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::heap {

inline constexpr std::size_t kPage = 4096;

/// Best fit with coalescing. Blocks are 128-byte aligned, large ones page-aligned. Thread-safe.
class Arena {
 public:
  /// Makes sure that memory can be touched, without being killed for it. False: the machine will not give it.
  using Commit = std::function<bool(std::byte* first, std::size_t bytes)>;

  Arena(std::byte* base, std::size_t bytes, Commit commit = {});

  /// nullptr when no gap is large enough, or there is no memory for it. Memory is committed when it is handed out for
  /// the first time, and stays so. A request for 0 bytes gets the smallest block.
  void* allocate(std::size_t bytes);

  /// As `allocate`, at a page, but nothing is committed yet: `commit_part` does that, before any of it is touched.
  void* reserve(std::size_t bytes);

  /// False: there is no memory for it. For a part of a block that was reserved.
  bool commit_part(std::byte* first, std::size_t bytes);

  /// Throws Error(invalid_argument) for an address that was not handed out, or was given back already.
  void deallocate(void* block);

  bool contains(const void* address, std::size_t bytes) const {
    const auto* first = static_cast<const std::byte*>(address);
    return first >= base_ && first < base_ + bytes_ && bytes <= static_cast<std::size_t>(base_ + bytes_ - first);
  }
  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t bytes_in_use() const;

 private:
  void* find(std::size_t bytes, bool commits);
  bool commit(std::size_t offset, std::size_t bytes);
  void add_gap(std::size_t offset, std::size_t bytes);
  void remove_gap(std::map<std::size_t, std::size_t>::iterator gap);

  std::byte* base_;
  std::size_t bytes_;
  Commit commit_;
  mutable std::mutex mutex_;
  // All below is protected by mutex_.
  std::map<std::size_t, std::size_t> gaps_;                     // offset -> bytes
  std::set<std::pair<std::size_t, std::size_t>> gaps_by_size_;  // (bytes, offset)
  std::unordered_map<std::size_t, std::size_t> blocks_;         // offset -> bytes
  std::vector<bool> committed_;                                 // by unit
  std::size_t in_use_ = 0;
};

}  // namespace lockstep::heap
