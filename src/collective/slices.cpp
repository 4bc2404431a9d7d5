#include "collective/slices.hpp"

#include <algorithm>

#include "collective/routes.hpp"

namespace lockstep {

// Two ranks never write to one cache line, nor to its neighbour, which is fetched with it.
ElementRange owned_slice(std::size_t elements, DType result, std::size_t index, std::size_t ranks) {
  constexpr std::size_t kLine = 128;
  const std::size_t line = kLine / size_of(result);
  const auto lines = static_cast<std::int64_t>((elements + line - 1) / line);
  const collective::Rows part = collective::equal_part(lines, index, ranks);
  const std::size_t first = std::min(static_cast<std::size_t>(part.first) * line, elements);
  const std::size_t end = std::min(static_cast<std::size_t>(part.first + part.count) * line, elements);
  return {first, end - first};
}

namespace collective {

ElementRange slice_of(const Call& call, std::size_t party) {
  if (!call.parties[party].present) return {};
  if (!call.slices.empty()) return call.slices[party];
  std::size_t index = 0;
  for (std::size_t i = 0; i < party; ++i) index += call.parties[i].present ? 1 : 0;
  return owned_slice(call.elements, call.result_dtype, index, call.present());
}

}  // namespace collective
}  // namespace lockstep
