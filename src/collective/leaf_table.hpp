// Which leaves a call's tree has, and where the partial sum of each lies.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collective/call.hpp"

namespace lockstep::collective {

/// Throws Error(mismatch), on all ranks alike, when the ranges of leaves that ranks have given leave a gap or overlap.
/// The leaves of ranks that have joined may be missing.
void check_leaf_ranges(const Call& call);

/// What an average divides by: the leaves of all parties, or of those that are present.
std::uint64_t divisor_of(const Call& call, bool by_contributors);

/// Partial sums that a party gives: one per subtree of its range.
std::size_t partials_of(const Call& call, std::size_t party);

/// In the order of the tree. A party that has joined, or that owns no leaf, has no entry.
class LeafTable {
 public:
  explicit LeafTable(const Call& call);

  struct Entry {
    std::size_t party = 0;
    std::size_t partial = 0;  ///< which of the party's partial sums
    std::size_t offset = 0;   ///< of it, in bytes into the party's input
  };

  std::span<const Entry> entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }

  /// As Reduction wants them: empty when the leaves pair up like a tree without gaps.
  std::span<const std::size_t> numbers() const { return numbers_; }
  std::size_t total() const { return total_; }

 private:
  std::vector<Entry> entries_;
  std::vector<std::size_t> numbers_;
  std::size_t total_;
};

}  // namespace lockstep::collective
