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

#include <bit>
#include <cstddef>
#include <optional>

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

}  // namespace lockstep
