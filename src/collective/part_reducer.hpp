// What every algorithm does once it has the leaves of a part of the tensor in hand.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collective/call.hpp"
#include "collective/leaf_table.hpp"
#include "collective/reduce_kernel.hpp"

namespace lockstep::collective {

/// Carries out `reduction`, of which the first element is number `offset` of the whole tensor, and lets the call's
/// epilogue change the result before it goes to the outputs. `buffer` is what the epilogue works on: outputs keep what
/// they hold until it has seen it. Throws Error(aborted) when the epilogue throws.
void reduce_with_epilogue(const Call& call, std::size_t offset, const Reduction& reduction,
                          std::vector<std::byte>& buffer);

/// REQUIRES: the call outlives it.
class PartReducer {
 public:
  explicit PartReducer(const Call& call);

  const LeafTable& leaves() const { return table_; }

  /// Reduces `elements` elements, of which the first is number `offset` of the whole tensor, and writes them to every
  /// output, once the epilogue has seen them. `leaves` has one pointer per entry of the table, to the first of these
  /// elements. Throws Error(aborted) when the epilogue throws.
  void reduce(std::size_t offset, std::size_t elements, std::span<const std::byte* const> leaves,
              std::span<std::byte* const> outputs);

 private:
  const Call& call_;
  LeafTable table_;
  std::vector<std::byte> buffer_;  // of the epilogue
};

}  // namespace lockstep::collective
