// Reductions over more leaves than ranks: what a rank must know to add up its own.
//
// A reduction is one fixed tree over its leaves. By default every rank is a leaf. A job may instead have a fixed number
// of leaves (shards of the global batch), of which each rank owns a contiguous range: the result then has the same bits
// whoever owns what, as long as each rank adds exactly the subtrees that its range consists of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/export.hpp"
#include "lockstep/types.hpp"

namespace lockstep {

/// Leaves [first, first + count) out of `total`. A rank may own none.
struct LeafRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t total = 0;
};

/// A subtree: leaves [first, first + count).
struct LeafBlock {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The subtrees that a range consists of, in order: as few as possible, so an aligned power of two is one. Each of them
/// is one partial sum that the rank gives to a reduction. Throws Error(invalid_argument) for a range that does not lie
/// within its total.
LOCKSTEP_API std::vector<LeafBlock> leaf_blocks(const LeafRange& range);

/// The type of partial sums of leaves of that type: float32 for the 16-bit types, which are rounded only once, at the
/// end; the type itself for all others.
LOCKSTEP_API DType partial_type(DType leaf);

/// Adds up a rank's leaves. `leaves` holds one tensor per leaf of the range, all of one type and shape; `partials`
/// must have the partial_type and one more dimension in front, of extent `leaf_blocks(range).size()`. Both row-major.
/// `op` is that of the reduction (not Adasum), of which an average is summed here and divided there. Each leaf is
/// multiplied by `prescale` first. Throws Error(invalid_argument) when they do not fit together.
LOCKSTEP_API void sum_leaves(const LeafRange& range, std::span<const TensorView> leaves, const TensorView& partials,
                             ReduceOp op = ReduceOp::sum, double prescale = 1.0);

}  // namespace lockstep
