// Which ranks belong together, and who of them has joined.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::negotiation {

using GroupId = std::uint32_t;
inline constexpr GroupId kWorld = 0;

/// Ranks of the world in ascending order; the place of a rank in it is its leaf in every reduction of the group.
struct Members {
  GroupId id = kWorld;
  std::vector<int> ranks;

  std::optional<std::size_t> index_of(int rank) const;
};
using MembersPtr = std::shared_ptr<const Members>;

/// What this rank knows of groups. A group's number follows from its members and from how often they made one, so its
/// members find the same number without asking; everybody else learns from their notices that it is none of his.
class Groups {
 public:
  Groups(int rank, int size);

  const MembersPtr& world() const { return world_; }

  /// Sorts the ranks of a group. Throws Error(invalid_argument) for ranks that do not exist or are named twice, and for
  /// none.
  static void check(std::vector<int>& ranks, int size);

  /// This rank makes a group that it belongs to. Throws what `check` throws, also when this rank is not among them.
  MembersPtr make(std::vector<int> ranks);

  /// A peer has announced a group.
  void note(GroupId id, std::span<const std::byte> bitmap);

  /// nullptr when this rank does not belong to it.
  MembersPtr find(GroupId id) const;

  /// The members as a bitmap, to be announced. Throws Error(invalid_argument) when a rank is beyond its end.
  static std::vector<std::byte> bitmap_of(const Members& members);

 private:
  int rank_;
  int size_;
  MembersPtr world_;
  std::unordered_map<GroupId, MembersPtr> groups_;         // nullptr: others' only
  std::unordered_map<GroupId, MembersPtr> early_;          // announced by a peer before this rank made it
  std::unordered_map<std::uint64_t, std::uint32_t> made_;  // how often, by hash of the members
};

}  // namespace lockstep::negotiation
