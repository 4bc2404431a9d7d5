// Who measures and combines which part of a tensor in an Adasum, and how the measurements come together.
#pragma once

#include <optional>
#include <vector>

#include "collective/adasum_kernel.hpp"
#include "collective/call.hpp"
#include "collective/leaf_table.hpp"

namespace lockstep::collective {

/// A party's slice is a range of whole blocks. It gives the sums of the subtrees, in the tree over all blocks, that its
/// range consists of, so that the tree can be finished by everybody.
class AdasumPlan {
 public:
  explicit AdasumPlan(const Call& call);

  const LeafTable& leaves() const { return table_; }

  /// In elements.
  ElementRange slice(std::size_t party) const;

  /// f64 numbers that a party gives to the others.
  std::size_t measured_size(std::size_t party) const { return subtrees(party).size() * gram_size(table_.size()); }

  /// Of this rank's slice, from the matrices of its blocks, in order.
  std::vector<double> fold(const std::vector<Gram>& blocks) const;

  /// The factor of each leaf, the call's scales included, from what every party has measured.
  std::vector<double> factors(const std::vector<const double*>& measured) const;

 private:
  std::vector<LeafBlock> subtrees(std::size_t party) const;

  const Call& call_;
  LeafTable table_;
  std::size_t blocks_;
};

/// A bound of measured_size for any party, known before it is known who has joined.
std::size_t most_measured(std::size_t elements, std::size_t ranks);

}  // namespace lockstep::collective
