// The update of a run of elements, for one optimizer at one step. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/optimizer.hpp"

namespace lockstep::optim {

/// An optimizer at one step, with all that does not depend on the element worked out.
struct Rule {
  OptimizerOptions options;
  bool first_step = false;
  double rate = 0.0;            ///< by which the update is multiplied
  double root_of_second = 1.0;  ///< Adam: the square root of the second bias correction
};
Rule rule_at(const OptimizerOptions& options, std::int64_t step);

/// `result` may be the same memory as `weights` or as `gradient`, and overlaps with nothing else.
template <class T>
struct Elements {
  const T* weights;
  const T* gradient;
  T* result;
  std::array<T*, kMostOptimizerStates> state;
  std::size_t count;
};

void apply(const Rule& rule, const Elements<float>& elements);
void apply(const Rule& rule, const Elements<double>& elements);

}  // namespace lockstep::optim
