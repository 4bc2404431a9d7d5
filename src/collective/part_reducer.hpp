// What every algorithm does once it has the leaves of a part of the tensor in hand.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collective/call.hpp"
#include "collective/leaf_table.hpp"

namespace lockstep::collective {

/// REQUIRES: the call outlives it.
class PartReducer {
 public:
  explicit PartReducer(const Call& call);

  const LeafTable& leaves() const { return table_; }

  /// Reduces `elements` elements, of which the first is number `offset` of the whole tensor, and writes them to every
  /// output. `leaves` has one pointer per entry of the table, to the first of these elements.
  void reduce(std::size_t offset, std::size_t elements, std::span<const std::byte* const> leaves,
              std::span<std::byte* const> outputs);

 private:
  const Call& call_;
  LeafTable table_;
};

}  // namespace lockstep::collective
