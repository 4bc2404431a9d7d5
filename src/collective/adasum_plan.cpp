#include "collective/adasum_plan.hpp"

#include <algorithm>
#include <bit>

#include "base/reduction_tree.hpp"
#include "collective/routes.hpp"

namespace lockstep::collective {
namespace {

std::size_t blocks_of(std::size_t elements) { return (elements + kAdasumBlock - 1) / kAdasumBlock; }

Gram add(const Gram& a, const Gram& b) {
  Gram sum(a.size());
  std::transform(a.begin(), a.end(), b.begin(), sum.begin(), [](double left, double right) { return left + right; });
  return sum;
}

}  // namespace

AdasumPlan::AdasumPlan(const Call& call) : call_(call), table_(call), blocks_(blocks_of(call.elements)) {}

ElementRange AdasumPlan::slice(std::size_t party) const {
  std::size_t first = call_.elements, end = 0;
  for (const LeafBlock& tree : subtrees(party)) {
    first = std::min(first, static_cast<std::size_t>(tree.first) * kAdasumBlock);
    end = std::min(static_cast<std::size_t>(tree.first + tree.count) * kAdasumBlock, call_.elements);
  }
  return end == 0 ? ElementRange{} : ElementRange{first, end - first};
}

std::vector<LeafBlock> AdasumPlan::subtrees(std::size_t party) const {
  if (!call_.parties[party].present) return {};
  std::size_t index = 0;
  for (std::size_t i = 0; i < party; ++i) index += call_.parties[i].present ? 1 : 0;
  const Rows part = equal_part(static_cast<std::int64_t>(blocks_), index, call_.present());
  return leaf_blocks({part.first, part.count, static_cast<std::int64_t>(blocks_)});
}

std::vector<double> AdasumPlan::fold(const std::vector<Gram>& blocks) const {
  std::vector<double> measured;
  std::size_t done = 0;
  for (const LeafBlock& tree : subtrees(static_cast<std::size_t>(call_.self))) {
    const auto count = static_cast<std::size_t>(tree.count);
    const Gram sum = *reduce_tree(
        0, count, [&](std::size_t i) { return std::optional(blocks[done + i]); }, add);
    measured.insert(measured.end(), sum.begin(), sum.end());
    done += count;
  }
  return measured;
}

std::vector<double> AdasumPlan::factors(const std::vector<const double*>& measured) const {
  std::vector<std::optional<Gram>> by_block(blocks_);  // each subtree in the place of its first block
  const std::size_t size = gram_size(table_.size());
  for (std::size_t party = 0; party < call_.count(); ++party) {
    const double* next = measured[party];
    for (const LeafBlock& tree : subtrees(party)) {
      by_block[static_cast<std::size_t>(tree.first)] = Gram(next, next + size);
      next += size;
    }
  }
  const Gram gram = *reduce_tree(
      0, blocks_, [&](std::size_t i) { return by_block[i]; }, add);
  std::vector<double> factors = adasum_factors(gram, table_.size(), table_.numbers(), table_.total());
  // Adasum of scaled vectors is the scaled Adasum.
  for (double& factor : factors) factor *= call_.prescale * call_.postscale;
  return factors;
}

std::size_t most_measured(std::size_t elements, std::size_t ranks) {
  // A range consists of at most two subtrees per level.
  return 2 * (std::bit_width(blocks_of(elements)) + 1) * gram_size(ranks);
}

}  // namespace lockstep::collective
