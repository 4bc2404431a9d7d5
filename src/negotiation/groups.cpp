#include "negotiation/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/hash.hpp"
#include "lockstep/error.hpp"
#include "transport/notice.hpp"

namespace lockstep::negotiation {

std::optional<std::size_t> Members::index_of(int rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end() || *found != rank) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

Groups::Groups(int rank, int size) : rank_(rank), size_(size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  world_ = std::make_shared<const Members>(Members{kWorld, std::move(all)});
  groups_.emplace(kWorld, world_);
}

void Groups::check(std::vector<int>& ranks, int size) {
  std::sort(ranks.begin(), ranks.end());
  const bool doubled = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (ranks.empty() || doubled || ranks.front() < 0 || ranks.back() >= size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a group of ranks [{}] makes no sense: each must be named once, from 0 to {}",
                            fmt::join(ranks, ", "), size - 1));
  }
}

MembersPtr Groups::make(std::vector<int> ranks) {
  check(ranks, size_);
  if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} is not among the ranks [{}] of the group; only its members make it", rank_,
                            fmt::join(ranks, ", ")));
  }
  Hasher hasher;
  hasher.add(ranks.data(), ranks.size() * sizeof(int));
  hasher.add(made_[hasher.value()]++);
  const auto id = static_cast<GroupId>(hasher.value());
  if (groups_.contains(id)) {
    throw Error(
        ErrorCode::internal,
        fmt::format("two groups have the same number {} by chance; make this one with its ranks once more", id));
  }
  auto members = std::make_shared<const Members>(Members{id, std::move(ranks)});
  groups_.emplace(id, members);
  return members;
}

void Groups::note(GroupId id, std::span<const std::byte> bitmap) {
  const auto byte = static_cast<std::size_t>(rank_) / 8;
  const bool member = byte < bitmap.size() && (bitmap[byte] & static_cast<std::byte>(1 << (rank_ % 8))) != std::byte{0};
  if (groups_.contains(id)) return;
  if (!member) {
    groups_.emplace(id, nullptr);
    return;
  }
  // A peer was faster than this rank; the member list is complete in the bitmap.
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    const auto at = static_cast<std::size_t>(rank) / 8;
    if (at < bitmap.size() && (bitmap[at] & static_cast<std::byte>(1 << (rank % 8))) != std::byte{0})
      ranks.push_back(rank);
  }
  early_.emplace(id, std::make_shared<const Members>(Members{id, std::move(ranks)}));
}

MembersPtr Groups::find(GroupId id) const {
  if (auto found = groups_.find(id); found != groups_.end()) return found->second;
  if (auto found = early_.find(id); found != early_.end()) return found->second;
  return nullptr;
}

std::vector<std::byte> Groups::bitmap_of(const Members& members) {
  std::vector<std::byte> bitmap(static_cast<std::size_t>(members.ranks.back()) / 8 + 1);
  if (bitmap.size() > transport::kInlineBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("groups can hold ranks below {}", transport::kInlineBytes * 8));
  }
  for (int rank : members.ranks) bitmap[static_cast<std::size_t>(rank) / 8] |= static_cast<std::byte>(1 << (rank % 8));
  return bitmap;
}

}  // namespace lockstep::negotiation
