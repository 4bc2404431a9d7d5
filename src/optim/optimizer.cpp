#include "lockstep/optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/half.hpp"
#include "lockstep/error.hpp"
#include "optim/kernel.hpp"

namespace lockstep {
namespace {

// 16-bit weights are worked on in f32, so many at a time that they stay in the cache.
constexpr std::size_t kTile = 512;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, "optimizer: " + what); }

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value < high))
    refuse(fmt::format("{} is {}; it must be at least {} and below {}", name, value, low, high));
}

void check_finite(const char* name, double value) {
  if (!std::isfinite(value)) refuse(fmt::format("{} is {}; it must be a number", name, value));
}

void check_not_negative(const char* name, double value) {
  if (!(value >= 0.0) || std::isinf(value)) refuse(fmt::format("{} is {}; it must be a number from 0 on", name, value));
}

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

float widened(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

std::uint16_t narrowed(DType dtype, float value) {
  return dtype == DType::bf16 ? bf16_from_f32(value) : f16_from_f32(value);
}

template <class T>
void update_plain(const optim::Rule& rule, const OptimizedTensor& tensor, std::size_t offset, std::size_t count,
                  void* values) {
  auto* gradient = static_cast<T*>(values);
  optim::Elements<T> elements{.weights = static_cast<const T*>(tensor.weights) + offset,
                              .gradient = gradient,
                              .result = gradient,
                              .state = {},
                              .count = count};
  for (std::size_t i = 0; i < optimizer_state_count(rule.options); ++i) {
    elements.state[i] = static_cast<T*>(tensor.state[i]) + (offset - tensor.first);
  }
  optim::apply(rule, elements);
}

void update_half(const optim::Rule& rule, const OptimizedTensor& tensor, std::size_t offset, std::size_t count,
                 void* values) {
  auto* gradient = static_cast<std::uint16_t*>(values);
  const auto* weights = static_cast<const std::uint16_t*>(tensor.weights) + offset;
  float* master = tensor.master == nullptr ? nullptr : tensor.master + (offset - tensor.first);
  float wide_weights[kTile], wide_gradient[kTile];
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t tile = std::min(kTile, count - done);
    for (std::size_t i = 0; i < tile; ++i) wide_gradient[i] = widened(tensor.dtype, gradient[done + i]);
    float* current = wide_weights;
    if (master != nullptr) {
      current = master + done;
    } else {
      for (std::size_t i = 0; i < tile; ++i) wide_weights[i] = widened(tensor.dtype, weights[done + i]);
    }
    optim::Elements<float> elements{
        .weights = current, .gradient = wide_gradient, .result = current, .state = {}, .count = tile};
    for (std::size_t i = 0; i < optimizer_state_count(rule.options); ++i) {
      elements.state[i] = static_cast<float*>(tensor.state[i]) + (offset - tensor.first) + done;
    }
    optim::apply(rule, elements);
    for (std::size_t i = 0; i < tile; ++i) gradient[done + i] = narrowed(tensor.dtype, current[i]);
  }
}

void update_by(const optim::Rule& rule, const OptimizedTensor& tensor, std::size_t offset, std::size_t count,
               void* values) {
  if (tensor.dtype == DType::f32) return update_plain<float>(rule, tensor, offset, count, values);
  if (tensor.dtype == DType::f64) return update_plain<double>(rule, tensor, offset, count, values);
  update_half(rule, tensor, offset, count, values);
}

void check_type(const OptimizedTensor& tensor) {
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::f64 && !is_half(tensor.dtype)) {
    refuse(fmt::format("weights of type {}; they must be real floats", name_of(tensor.dtype)));
  }
  if (tensor.master != nullptr && !is_half(tensor.dtype)) {
    refuse(fmt::format("a copy in f32 is for 16-bit weights; these are {}", name_of(tensor.dtype)));
  }
}

// Of a tensor of which elements are to be updated: a rank that owns none needs no state.
void check_state(const OptimizerOptions& options, const OptimizedTensor& tensor, std::size_t offset) {
  for (std::size_t i = 0; i < optimizer_state_count(options); ++i) {
    if (tensor.state[i] == nullptr)
      refuse(fmt::format("no memory for the state '{}'", optimizer_state_name(options, i)));
  }
  if (offset < tensor.first)
    refuse(fmt::format("element {} is before the first that has state, {}", offset, tensor.first));
}

optim::Rule checked_rule(const OptimizerOptions& options, std::int64_t step) {
  check_optimizer(options);
  if (step < 1) refuse(fmt::format("step {}; steps are counted from 1", step));
  return optim::rule_at(options, step);
}

}  // namespace

void check_optimizer(const OptimizerOptions& options) {
  if (options.kind < OptimizerKind::sgd || options.kind > OptimizerKind::lion) {
    refuse(fmt::format("there is no kind {}", static_cast<int>(options.kind)));
  }
  // A schedule may end a hair below zero.
  check_finite("learning_rate", options.learning_rate);
  check_finite("weight_decay", options.weight_decay);
  check_not_negative("momentum", options.momentum);
  check_not_negative("epsilon", options.epsilon);
  check_not_negative("learning_rate_decay", options.learning_rate_decay);
  check_not_negative("smoothing", options.smoothing);
  check_range("beta1", options.beta1, 0.0, 1.0);
  check_range("beta2", options.beta2, 0.0, 1.0);
  if (options.nesterov && (options.momentum <= 0.0 || options.dampening != 0.0)) {
    refuse("nesterov needs a momentum, and no dampening");
  }
}

std::size_t optimizer_state_count(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::sgd:
      return options.momentum != 0.0 ? 1 : 0;
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
      return options.amsgrad ? 3 : 2;
    case OptimizerKind::rmsprop:
      return 1 + (options.momentum != 0.0 ? 1 : 0) + (options.centered ? 1 : 0);
    case OptimizerKind::adagrad:
    case OptimizerKind::lion:
      return 1;
  }
  return 0;
}

const char* optimizer_state_name(const OptimizerOptions& options, std::size_t index) {
  if (index >= optimizer_state_count(options)) refuse(fmt::format("it has no state number {}", index));
  switch (options.kind) {
    case OptimizerKind::sgd:
      return "momentum_buffer";
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
      return index == 0 ? "exp_avg" : index == 1 ? "exp_avg_sq" : "max_exp_avg_sq";
    case OptimizerKind::adagrad:
      return "sum";
    case OptimizerKind::rmsprop:
      if (index == 0) return "square_avg";
      return index == 1 && options.momentum != 0.0 ? "momentum_buffer" : "grad_avg";
    case OptimizerKind::lion:
      return "exp_avg";
  }
  return "";
}

void update_weights(const OptimizerOptions& options, std::int64_t step, const OptimizedTensor& tensor,
                    std::size_t offset, std::size_t count, void* values) {
  const optim::Rule rule = checked_rule(options, step);
  check_type(tensor);
  check_state(options, tensor, offset);
  update_by(rule, tensor, offset, count, values);
}

Epilogue update_epilogue(const OptimizerOptions& options, std::int64_t step, std::vector<OptimizedTensor> tensors) {
  const optim::Rule rule = checked_rule(options, step);
  for (const OptimizedTensor& tensor : tensors) check_type(tensor);
  return [rule, tensors = std::move(tensors)](const ReducedSlice& slice) {
    if (slice.tensor >= tensors.size()) {
      refuse(fmt::format("tensor {} of the operation has no weights: {} were given", slice.tensor, tensors.size()));
    }
    const OptimizedTensor& tensor = tensors[slice.tensor];
    check_state(rule.options, tensor, slice.offset);
    update_by(rule, tensor, slice.offset, slice.count, slice.values);
  };
}

}  // namespace lockstep
