// Which part of whose input goes where: the arithmetic of every operation that moves data, in one place. Pure.
//
// Rows are counted in the first dimension. Reduce-scatter and scatter cut the rows into equal parts; the first ranks
// get one more when it does not divide evenly. Parties that have joined give and get nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/call.hpp"

namespace lockstep::collective {

struct Rows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Part `index` of `rows` rows cut into `parts`.
Rows equal_part(std::int64_t rows, std::size_t index, std::size_t parts);

struct Route {
  std::size_t from = 0;   ///< bytes into the source's input
  std::size_t to = 0;     ///< bytes into the destination's output
  std::size_t bytes = 0;  ///< 0: nothing goes this way
};

/// What party `source` gives to party `destination` (which may be the same). For reductions it is the part of each
/// partial sum, and `to` is 0: the result is all that the destination gets. REQUIRES for all-to-all: splits of all
/// parties are readable.
Route route(const Call& call, std::size_t source, std::size_t destination);

/// Rows of this rank's result.
std::int64_t result_rows(const Call& call);

/// All-to-all: notes how many rows come from whom. Throws Error(invalid_argument), on all ranks alike, when rows are
/// owed to a rank that has joined.
void settle_splits(const Call& call);

/// True when others read this rank's input.
bool gives(const Call& call, std::size_t index);

}  // namespace lockstep::collective
