#include "lockstep/leaves.hpp"

#include <fmt/format.h>

#include "base/reduction_tree.hpp"
#include "lockstep/error.hpp"

namespace lockstep {

std::vector<LeafBlock> leaf_blocks(const LeafRange& range) {
  // Written without sums, which could overflow.
  if (range.total < 1 || range.first < 0 || range.count < 0 || range.first > range.total ||
      range.count > range.total - range.first) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} leaves from leaf {} on do not lie within {} leaves",
                                                         range.count, range.first, range.total));
  }
  std::vector<LeafBlock> blocks;
  const auto first = static_cast<std::size_t>(range.first), end = first + static_cast<std::size_t>(range.count);
  for_each_subtree(0, static_cast<std::size_t>(range.total), first, end, [&](std::size_t from, std::size_t count) {
    blocks.push_back({static_cast<std::int64_t>(from), static_cast<std::int64_t>(count)});
  });
  return blocks;
}

DType partial_type(DType leaf) { return leaf == DType::f16 || leaf == DType::bf16 ? DType::f32 : leaf; }

}  // namespace lockstep
