// The C interface of the optimizers.
#include "c_api/guarded.hpp"
#include "c_api/handles.hpp"
#include "lockstep/lockstep.h"
#include "lockstep/lockstep.hpp"

namespace lockstep::c_api {

OptimizerOptions optimizer_of(const ls_optimizer_options* given) {
  const OptimizerOptions preset;
  const ls_optimizer_options taken = take(given,
                                          {.struct_size = sizeof(ls_optimizer_options),
                                           .kind = static_cast<int32_t>(preset.kind),
                                           .maximize = preset.maximize,
                                           .nesterov = preset.nesterov,
                                           .amsgrad = preset.amsgrad,
                                           .centered = preset.centered,
                                           .learning_rate = preset.learning_rate,
                                           .weight_decay = preset.weight_decay,
                                           .momentum = preset.momentum,
                                           .dampening = preset.dampening,
                                           .beta1 = preset.beta1,
                                           .beta2 = preset.beta2,
                                           .epsilon = preset.epsilon,
                                           .learning_rate_decay = preset.learning_rate_decay,
                                           .smoothing = preset.smoothing},
                                          "optimizer options");
  return {.kind = static_cast<OptimizerKind>(taken.kind),
          .learning_rate = taken.learning_rate,
          .weight_decay = taken.weight_decay,
          .maximize = taken.maximize != 0,
          .momentum = taken.momentum,
          .dampening = taken.dampening,
          .nesterov = taken.nesterov != 0,
          .beta1 = taken.beta1,
          .beta2 = taken.beta2,
          .epsilon = taken.epsilon,
          .amsgrad = taken.amsgrad != 0,
          .learning_rate_decay = taken.learning_rate_decay,
          .smoothing = taken.smoothing,
          .centered = taken.centered != 0};
}

}  // namespace lockstep::c_api

namespace {

using lockstep::OptimizedTensor;
using lockstep::OptimizerOptions;
using lockstep::c_api::guarded;
using lockstep::c_api::optimizer_of;
using lockstep::c_api::required;
using lockstep::c_api::take;

OptimizedTensor optimized_of(const ls_optimized_tensor* given) {
  const ls_optimized_tensor taken = take(given, ls_optimized_tensor{}, "optimized tensor");
  return {.weights = taken.weights,
          .dtype = static_cast<lockstep::DType>(taken.dtype),
          .first = taken.first,
          .state = {taken.state[0], taken.state[1], taken.state[2]},
          .master = taken.master};
}

}  // namespace

extern "C" {

int ls_optimizer_state_count(const ls_optimizer_options* options, size_t* count) {
  return guarded([&] {
    const OptimizerOptions optimizer = optimizer_of(options);
    lockstep::check_optimizer(optimizer);
    required(count, "count") = lockstep::optimizer_state_count(optimizer);
  });
}

int ls_optimizer_state_name(const ls_optimizer_options* options, size_t index, const char** name) {
  return guarded([&] { required(name, "name") = lockstep::optimizer_state_name(optimizer_of(options), index); });
}

int ls_optimizer_update(const ls_optimizer_options* options, int64_t step, const ls_optimized_tensor* tensor,
                        size_t offset, size_t count, void* values) {
  return guarded(
      [&] { lockstep::update_weights(optimizer_of(options), step, optimized_of(tensor), offset, count, values); });
}

const char* ls_optimizer_epilogue(void* user, const ls_reduced_slice* slice) {
  const int status = guarded([&] {
    const auto step = take(static_cast<const ls_optimizer_step*>(user), ls_optimizer_step{}, "optimizer step");
    const std::size_t tensor = required(slice, "slice").tensor;
    if (tensor >= step.tensor_count) {
      throw lockstep::Error(lockstep::ErrorCode::invalid_argument,
                            "optimizer: a tensor of the operation has no weights");
    }
    const auto* first = reinterpret_cast<const std::byte*>(&required(step.tensors, "tensors"));
    // Their size is that of the caller's header.
    const auto* optimized = reinterpret_cast<const ls_optimized_tensor*>(first + tensor * step.tensors->struct_size);
    const auto taken = take(optimized, ls_optimized_tensor{}, "optimized tensor");
    const OptimizerOptions options = optimizer_of(taken.options != nullptr ? taken.options : step.options);
    lockstep::update_weights(options, taken.step != 0 ? taken.step : step.step, optimized_of(&taken), slice->offset,
                             slice->count, slice->values);
  });
  return status == LS_OK ? nullptr : ls_last_error();
}

}  // extern "C"
