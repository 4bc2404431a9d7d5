// What a rank tells the others when it ends a step.
#pragma once

#include <cstdint>

namespace lockstep::fusion {

/// The number of a step. It only grows: steps after a join of the world come after all that were before it, however
/// many each rank had.
using Step = std::uint64_t;
inline constexpr Step kNoStep = 0;
constexpr Step step_number(std::uint64_t joins, std::uint64_t steps_since) { return joins << 32 | steps_since; }

/// The operations of a step that a plan could hold, as a set: the order of submission does not matter.
struct StepSet {
  std::uint64_t sum = 0;
  std::uint64_t count = 0;

  /// `hash` of the name and of all on which ranks must agree.
  void add(std::uint64_t hash) {
    sum += hash;
    ++count;
  }
  bool operator==(const StepSet&) const = default;
};

/// Travels inside the notice of the step's end.
struct StepEnd {
  StepSet set;
  std::uint64_t named = 0;              ///< operations of the world that have names, plannable or not
  std::uint64_t waited_for_bucket = 0;  ///< 1: a wait inside the step came before its bucket was full
};

}  // namespace lockstep::fusion
