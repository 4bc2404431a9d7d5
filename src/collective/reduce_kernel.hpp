// The arithmetic of a reduction: n leaves, joined in the order of the fixed tree, written to one or more outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/types.hpp"

namespace lockstep::collective {

struct Reduction {
  DType dtype = DType::f32;
  /// What the outputs hold, where it differs: see `converts`.
  std::optional<DType> result_dtype = std::nullopt;
  ReduceOp op = ReduceOp::sum;
  /// By leaf number; nullptr marks an absent leaf, which is skipped. At least one is present.
  std::span<const std::byte* const> leaves;
  /// When some of the tree's leaves are not in the list at all: the numbers of those that are, ascending, and how many
  /// the tree has. Empty: leaf i of the list is leaf i of the tree.
  std::span<const std::size_t> numbers = {};
  std::size_t total = 0;
  /// Each gets the whole result. An output may be one of the leaves.
  std::span<std::byte* const> outputs;
  std::size_t elements = 0;
  /// What an average divides by.
  std::uint64_t divisor = 1;
  /// Each leaf is multiplied by the first, the result by the second. Integers are scaled in f64 and truncated.
  double prescale = 1.0;
  double postscale = 1.0;
};

/// 16-bit types are summed in f32 and rounded once. Averages divide; integer averages are summed in 64 bits and
/// truncate towards zero. NaN propagates through min and max. For bool, sum and max mean "or", product and min mean
/// "and". Adasum is not done here.
void reduce(const Reduction& reduction);

/// False for what has no meaning: the average of bools, min and max of complex numbers, Adasum of
/// anything but real floats.
bool is_defined(DType dtype, ReduceOp op);

/// True when leaves of one type can give a result of the other: the same, or float32 and a 16-bit type of float.
bool converts(DType leaves, DType result);

/// The instruction set in use, for reports.
const char* kernel_target();

}  // namespace lockstep::collective
