// Who is ready with what. No coordinator: every rank reads everybody's notices and comes to the same conclusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "negotiation/groups.hpp"
#include "transport/notice.hpp"

namespace lockstep::negotiation {

/// The notices of one operation, by place in the group.
struct Gathering {
  MembersPtr members;
  std::vector<transport::NoticeRef> arrivals;

  bool agreed() const;
  bool has(int rank) const;
  /// Ranks that have not announced it.
  std::vector<int> missing() const;
};

/// Not thread-safe: the engine calls it under its lock.
class Matcher {
 public:
  /// Notes that `rank` has announced the operation, and returns how the operation stands.
  /// Throws Error(internal) when the same rank announces the same operation twice.
  const Gathering& arrive(int rank, const MembersPtr& members, const transport::NoticeRef& notice);

  /// Forgets the operations that `rank` has not announced and that `unwanted` says so of, given their id and the notice
  /// of one of those who have. Returns whose notices are now free.
  using Unwanted = std::function<bool(std::uint64_t id, const transport::NoticeHead& notice)>;
  std::vector<std::pair<int, std::uint64_t>> drop_without(int rank, const Unwanted& unwanted);

  const Gathering* find(std::uint64_t id) const;
  void forget(std::uint64_t id) { gatherings_.erase(id); }

 private:
  std::unordered_map<std::uint64_t, Gathering> gatherings_;
};

}  // namespace lockstep::negotiation
