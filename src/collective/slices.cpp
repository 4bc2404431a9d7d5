#include "collective/slices.hpp"

#include <algorithm>

#include "collective/routes.hpp"

namespace lockstep::collective {

constexpr std::size_t kLine = 128;

Slice slice_of(const Call& call, std::size_t party) {
  if (!call.parties[party].present) return {};
  std::size_t index = 0;
  for (std::size_t i = 0; i < party; ++i) index += call.parties[i].present ? 1 : 0;
  const std::size_t line = kLine / size_of(call.result_dtype);
  const auto lines = static_cast<std::int64_t>((call.elements + line - 1) / line);
  const Rows part = equal_part(lines, index, call.present());
  const std::size_t first = std::min(static_cast<std::size_t>(part.first) * line, call.elements);
  const std::size_t end = std::min(static_cast<std::size_t>(part.first + part.count) * line, call.elements);
  return {first, end - first};
}

}  // namespace lockstep::collective
