// Optimizers as epilogues: the rank that has reduced a slice of the gradients updates that slice of the weights in the
// same pass, so each of p ranks does 1/p of the update, and keeps 1/p of the optimizer's state.
//
//   const OptimizerOptions adam{.kind = OptimizerKind::adam, .learning_rate = 1e-3};
//   const ElementRange mine = owned_slice(elements, DType::f32, rank, size);
//   std::vector<float> first(mine.count), second(mine.count);  // optimizer_state_count(adam) of them, zeros
//   OptimizedTensor tensor{.weights = weights, .dtype = DType::f32, .first = mine.offset, .state = {first.data(),
//   second.data()}};
//   engine.all_reduce(gradient_view, weights_view, {.op = ReduceOp::average, .epilogue = update_epilogue(adam, step,
//   {tensor})});
//
// The arithmetic is that of PyTorch's optimizers of the same names (Lion: Chen et al., "Symbolic Discovery of
// Optimization Algorithms", 2023), element by element, in the precision of the state: f64 for weights of f64, otherwise
// f32, rounded once. So the new weights do not depend on how a tensor was cut, nor on the instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/epilogue.hpp"
#include "lockstep/export.hpp"
#include "lockstep/types.hpp"

namespace lockstep {

/// Numbers are part of the C interface: append, never renumber.
enum class OptimizerKind : std::int32_t { sgd = 0, adam = 1, adamw = 2, adagrad = 3, rmsprop = 4, lion = 5 };
inline constexpr std::size_t kMostOptimizerStates = 3;

/// Each kind uses some of these; the others must keep their defaults where a comment names the kinds.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double learning_rate = 1e-3;
  double weight_decay = 0.0;  ///< added to the gradient; AdamW and Lion: taken from the weights
  bool maximize = false;
  double momentum = 0.0;             ///< SGD, RMSprop
  double dampening = 0.0;            ///< SGD
  bool nesterov = false;             ///< SGD with momentum and without dampening
  double beta1 = 0.9;                ///< Adam, AdamW, Lion
  double beta2 = 0.999;              ///< the same
  double epsilon = 1e-8;             ///< Adam, AdamW, Adagrad, RMSprop
  bool amsgrad = false;              ///< Adam, AdamW
  double learning_rate_decay = 0.0;  ///< Adagrad
  double smoothing = 0.99;           ///< RMSprop
  bool centered = false;             ///< RMSprop
};

/// Throws Error(invalid_argument) that names the option which makes no sense.
LOCKSTEP_API void check_optimizer(const OptimizerOptions& options);

/// How many numbers each element has as state, and what PyTorch calls them, in the order of OptimizedTensor::state.
LOCKSTEP_API std::size_t optimizer_state_count(const OptimizerOptions& options);
LOCKSTEP_API const char* optimizer_state_name(const OptimizerOptions& options, std::size_t index);

/// The weights of one tensor, and this rank's part of its state. All of it belongs to the caller.
struct OptimizedTensor {
  void* weights = nullptr;   ///< of the whole tensor: the output of the reduction, as it is before the update
  DType dtype = DType::f32;  ///< of the weights and of the reduced gradient: f16, bf16, f32 or f64
  std::size_t first = 0;     ///< the element whose state stands first in `state`
  /// Of type f32, with weights of f64 of f64; begins as zeros. None is needed where this rank owns no element.
  std::array<void*, kMostOptimizerStates> state{};
  float* master = nullptr;  ///< 16-bit weights may have a copy in f32, which is updated in their place; as `state`
};

/// Updates elements [offset, offset + count). `values` holds the gradient, and then the new weights; the weights
/// themselves stay. `step` counts from 1. Pure: uses nothing but its arguments.
LOCKSTEP_API void update_weights(const OptimizerOptions& options, std::int64_t step, const OptimizedTensor& tensor,
                                 std::size_t offset, std::size_t count, void* values);

/// An epilogue that does it. Several at once: one for each tensor of the operation, in the order of submission. The
/// memory must stay until the operation is complete.
LOCKSTEP_API Epilogue update_epilogue(const OptimizerOptions& options, std::int64_t step,
                                      std::vector<OptimizedTensor> tensors);

}  // namespace lockstep
