#include "heap/arena.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "lockstep/error.hpp"

namespace lockstep::heap {
namespace {

constexpr std::size_t kAlignment = 128;
constexpr std::size_t kLarge = 64 * 1024;
constexpr std::size_t kCommitUnit = 64 * 1024;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(std::byte* base, std::size_t bytes, Commit commit)
    : base_(base), bytes_(bytes), commit_(std::move(commit)), committed_(bytes / kCommitUnit + 1) {
  if (bytes > 0) add_gap(0, bytes);
}

void* Arena::allocate(std::size_t bytes) { return find(bytes, /*commits=*/true); }
void* Arena::reserve(std::size_t bytes) { return find(std::max(bytes, kLarge), /*commits=*/false); }

bool Arena::commit_part(std::byte* first, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  return commit(static_cast<std::size_t>(first - base_), bytes);
}

void* Arena::find(std::size_t bytes, bool commits) {
  if (bytes > bytes_) return nullptr;  // also keeps the rounding below from wrapping around
  const std::size_t unit = bytes >= kLarge ? kPage : kAlignment;
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), unit);
  std::lock_guard lock(mutex_);
  for (auto it = gaps_by_size_.lower_bound({wanted, 0}); it != gaps_by_size_.end(); ++it) {
    const auto [gap_bytes, gap_offset] = *it;
    const std::size_t offset = round_up(gap_offset, unit);
    if (offset + wanted > gap_offset + gap_bytes) continue;  // too small once aligned
    if (commits && !commit(offset, wanted)) continue;        // another gap may have been used before
    remove_gap(gaps_.find(gap_offset));
    if (offset > gap_offset) add_gap(gap_offset, offset - gap_offset);
    const std::size_t rest = gap_offset + gap_bytes - (offset + wanted);
    if (rest > 0) add_gap(offset + wanted, rest);
    blocks_.emplace(offset, wanted);
    in_use_ += wanted;
    return base_ + offset;
  }
  return nullptr;
}

bool Arena::commit(std::size_t offset, std::size_t bytes) {
  if (!commit_) return true;
  const std::size_t end = (offset + bytes + kCommitUnit - 1) / kCommitUnit;
  for (std::size_t unit = offset / kCommitUnit; unit < end;) {
    std::size_t last = unit;
    while (last < end && !committed_[last]) ++last;
    if (last > unit) {
      const std::size_t first = unit * kCommitUnit;
      if (!commit_(base_ + first, std::min(last * kCommitUnit, bytes_) - first)) return false;
      std::fill(committed_.begin() + static_cast<std::ptrdiff_t>(unit),
                committed_.begin() + static_cast<std::ptrdiff_t>(last), true);
    }
    unit = last + 1;
  }
  return true;
}

void Arena::deallocate(void* block) {
  const auto* address = static_cast<const std::byte*>(block);
  std::lock_guard lock(mutex_);
  auto found = contains(block, 0) ? blocks_.find(static_cast<std::size_t>(address - base_)) : blocks_.end();
  if (found == blocks_.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is not a block of this engine's heap. Likely cause: freed twice, or by another engine.",
                            block));
  }
  std::size_t offset = found->first;
  std::size_t bytes = found->second;
  blocks_.erase(found);
  in_use_ -= bytes;
  // Join with the neighbours, so that a step's worth of frees leaves one gap and not a thousand.
  auto after = gaps_.lower_bound(offset);
  if (after != gaps_.end() && after->first == offset + bytes) {
    bytes += after->second;
    auto next = std::next(after);
    remove_gap(after);
    after = next;
  }
  if (after != gaps_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove_gap(before);
    }
  }
  add_gap(offset, bytes);
}

std::size_t Arena::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

void Arena::add_gap(std::size_t offset, std::size_t bytes) {
  gaps_.emplace(offset, bytes);
  gaps_by_size_.emplace(bytes, offset);
}

void Arena::remove_gap(std::map<std::size_t, std::size_t>::iterator gap) {
  gaps_by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

}  // namespace lockstep::heap
