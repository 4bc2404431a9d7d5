// The one order in which Lockstep adds: pure arithmetic, shared by every algorithm and transport.
//
// The sum over n leaves is a fixed binary tree: the left subtree holds the largest power of two below n leaves, the
// right one the rest.
//
//     n = 5:   ((0 + 1) + (2 + 3)) + 4          n = 7:   ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//
// So every aligned block of 2^k leaves is a subtree for every n: a worker that owns such a block can add it alone, and
// the result does not depend on who owned what. Absent leaves are skipped, never added as zero, because
// -0.0 + 0.0 changes bits. IEEE addition is commutative, so only the pairing matters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <span>

namespace lockstep {

/// Leaves in the left subtree of a tree with n >= 2 leaves.
constexpr std::size_t left_leaves(std::size_t n) { return std::bit_floor(n - 1); }

/// Evaluates the tree over leaves [first, first + n). `leaf(i)` gives an optional value (nullopt: absent), `add` joins
/// two.
template <class Leaf, class Add>
auto reduce_tree(std::size_t first, std::size_t n, const Leaf& leaf, const Add& add) -> decltype(leaf(first)) {
  if (n == 0) return std::nullopt;
  if (n == 1) return leaf(first);
  const std::size_t left_count = left_leaves(n);
  auto left = reduce_tree(first, left_count, leaf, add);
  auto right = reduce_tree(first + left_count, n - left_count, leaf, add);
  if (!left) return right;
  if (!right) return left;
  return add(*left, *right);
}

/// Calls `emit(first, count)` for the subtrees that make up the leaves [from, to), the largest possible, in order. The
/// tree is the one over leaves [first, first + n), n >= 1.
template <class Emit>
void for_each_subtree(std::size_t first, std::size_t n, std::size_t from, std::size_t to, const Emit& emit) {
  if (from >= to || to <= first || first + n <= from) return;
  if (from <= first && first + n <= to) return emit(first, n);
  const std::size_t left_count = left_leaves(n);
  for_each_subtree(first, left_count, from, to, emit);
  for_each_subtree(first + left_count, n - left_count, from, to, emit);
}

/// True when the tree over leaves [first, first + n), of which only those in `present` (ascending) are there, pairs
/// them as the tree over `present.size()` leaves would.
inline bool pairs_without_gaps(std::size_t first, std::size_t n, std::span<const std::size_t> present) {
  if (present.size() <= 1) return true;
  const std::size_t left = left_leaves(n);
  const auto middle = std::lower_bound(present.begin(), present.end(), first + left);
  const auto split = static_cast<std::size_t>(middle - present.begin());
  if (split == 0) return pairs_without_gaps(first + left, n - left, present);
  if (split == present.size()) return pairs_without_gaps(first, left, present);
  return split == left_leaves(present.size()) && pairs_without_gaps(first, left, present.first(split)) &&
         pairs_without_gaps(first + left, n - left, present.subspan(split));
}

}  // namespace lockstep
