// Who is ready with what. No coordinator: every rank reads everybody's notices and comes to the same conclusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "transport/notice.hpp"

namespace lockstep::negotiation {

/// The notices of one operation, by rank.
struct Gathering {
  std::vector<transport::NoticeRef> arrivals;
  std::size_t arrived = 0;

  bool complete() const { return arrived == arrivals.size(); }
  bool agreed() const;
  std::vector<int> missing() const;
};

/// Not thread-safe: the engine calls it under its lock.
class Matcher {
 public:
  explicit Matcher(int size) : size_(static_cast<std::size_t>(size)) {}

  /// Notes that `rank` has announced the operation, and returns how the operation stands.
  /// Throws Error(internal) when the same rank announces the same operation twice.
  const Gathering& arrive(int rank, const transport::NoticeRef& notice);

  const Gathering* find(std::uint64_t id) const;
  void forget(std::uint64_t id) { gatherings_.erase(id); }

 private:
  std::size_t size_;
  std::unordered_map<std::uint64_t, Gathering> gatherings_;
};

}  // namespace lockstep::negotiation
