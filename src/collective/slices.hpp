// Which part of a tensor belongs to which rank, when each reduces a part of its own. Pure.
#pragma once

#include <cstddef>

#include "collective/call.hpp"

namespace lockstep::collective {

struct Slice {
  std::size_t offset = 0;  ///< in elements
  std::size_t count = 0;
};

/// The slice of a party; none for one that has joined. Borders lie at multiples of 128 bytes of the result, so that two
/// ranks never write to one cache line, nor to its neighbour, which is fetched with it.
Slice slice_of(const Call& call, std::size_t party);

}  // namespace lockstep::collective
