#include <fmt/format.h>

#include <vector>

#include "collective/reduce_kernel.hpp"
#include "lockstep/error.hpp"
#include "lockstep/leaves.hpp"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, fmt::format("sum_leaves: {}", message));
}

void check(std::span<const TensorView> leaves, const TensorView& partials, std::size_t blocks, ReduceOp op) {
  std::vector<std::int64_t> shape = leaves.front().shape;
  for (const TensorView& leaf : leaves) {
    if (leaf.dtype != leaves.front().dtype || leaf.shape != shape) refuse("leaves must have one type and one shape");
    if (!leaf.strides.empty()) refuse("leaves must be row-major, without strides");
    if (leaf.bytes() > 0 && leaf.data == nullptr) refuse("a leaf has no memory");
  }
  shape.insert(shape.begin(), static_cast<std::int64_t>(blocks));
  if (partials.dtype != partial_type(leaves.front().dtype) || partials.shape != shape || !partials.strides.empty() ||
      (partials.bytes() > 0 && partials.data == nullptr)) {
    refuse(fmt::format("the partial sums of {} leaves of {} must be row-major {} of shape [{}]", leaves.size(),
                       name_of(leaves.front().dtype), name_of(partial_type(leaves.front().dtype)),
                       fmt::join(shape, ", ")));
  }
  if (op == ReduceOp::adasum || !collective::is_defined(partials.dtype, op)) {
    refuse(fmt::format("{} of {} has no partial sums", name_of(op), name_of(leaves.front().dtype)));
  }
}

}  // namespace

void sum_leaves(const LeafRange& range, std::span<const TensorView> leaves, const TensorView& partials, ReduceOp op,
                double prescale) {
  const std::vector<LeafBlock> blocks = leaf_blocks(range);
  if (leaves.size() != static_cast<std::size_t>(range.count)) {
    refuse(fmt::format("{} tensors for a range of {} leaves", leaves.size(), range.count));
  }
  if (leaves.empty()) return;
  check(leaves, partials, blocks.size(), op);
  const auto elements = static_cast<std::size_t>(leaves.front().elements());
  if (elements == 0) return;
  auto* output = static_cast<std::byte*>(partials.data);
  for (const LeafBlock& block : blocks) {
    std::vector<const std::byte*> inputs;
    for (std::int64_t i = 0; i < block.count; ++i) {
      inputs.push_back(
          static_cast<const std::byte*>(leaves[static_cast<std::size_t>(block.first - range.first + i)].data));
    }
    collective::reduce({.dtype = leaves.front().dtype,
                        .result_dtype = partials.dtype,
                        .op = op == ReduceOp::average ? ReduceOp::sum : op,
                        .leaves = inputs,
                        .outputs = {&output, 1},
                        .elements = elements,
                        .prescale = prescale});
    output += elements * size_of(partials.dtype);
  }
}

}  // namespace lockstep
