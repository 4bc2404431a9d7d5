// What tests of the optimizers share: every kind and option, and numbers to try them with.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/optimizer.hpp"

namespace lockstep {

inline constexpr std::size_t kOptimizedElements = 1003;  // no multiple of any vector

inline std::vector<OptimizerOptions> every_option() {
  using Kind = OptimizerKind;
  std::vector<OptimizerOptions> all = {
      {.kind = Kind::sgd, .learning_rate = 0.1},
      {.kind = Kind::sgd, .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9},
      {.kind = Kind::sgd, .learning_rate = 0.1, .momentum = 0.9, .dampening = 0.3},
      {.kind = Kind::sgd, .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true},
      {.kind = Kind::adam},
      {.kind = Kind::adam, .weight_decay = 0.01, .beta1 = 0.4, .amsgrad = true},
      {.kind = Kind::adamw, .weight_decay = 0.01},
      {.kind = Kind::adamw, .weight_decay = 0.01, .amsgrad = true},
      {.kind = Kind::adagrad, .weight_decay = 0.01, .epsilon = 1e-10, .learning_rate_decay = 0.1},
      {.kind = Kind::lion, .weight_decay = 0.1, .beta2 = 0.99},
  };
  for (double momentum : {0.0, 0.9}) {
    for (bool centered : {false, true}) {
      all.push_back({.kind = Kind::rmsprop, .weight_decay = 0.01, .momentum = momentum, .centered = centered});
    }
  }
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().maximize = true;
  }
  return all;
}

inline std::string text_of(const OptimizerOptions& options) {
  return fmt::format("kind {} momentum {} dampening {} nesterov {} amsgrad {} centered {} maximize {}",
                     static_cast<int>(options.kind), options.momentum, options.dampening, options.nesterov,
                     options.amsgrad, options.centered, options.maximize);
}

/// Between -2 and 2, the same at every call.
inline float number_at(std::size_t i, std::uint64_t salt) {
  std::uint64_t bits = (salt << 32) + i + 1;
  for (int round = 0; round < 3; ++round) bits = (bits ^ (bits >> 29)) * 0x9E3779B97F4A7C15U;
  return static_cast<float>(bits >> 40) * 0x1p-22F - 2.0F;
}

template <class T>
std::vector<T> numbers(std::size_t count, std::uint64_t salt) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(number_at(i, salt));
  return values;
}

}  // namespace lockstep
