// The C interface of shared weights.
#include <utility>
#include <vector>

#include "c_api/guarded.hpp"
#include "c_api/handles.hpp"
#include "lockstep/lockstep.h"
#include "lockstep/shared_weights.hpp"

struct ls_shared_weights {
  lockstep::SharedWeights weights;
};

namespace {

using lockstep::OptimizerOptions;
using lockstep::SharedTensor;
using lockstep::SharedValues;
using lockstep::c_api::guarded;
using lockstep::c_api::optimizer_of;
using lockstep::c_api::required;
using lockstep::c_api::take;

// One of an array whose structs may have another size than ours.
template <class Struct>
const Struct* element_of(const Struct* first, std::size_t index, const char* what) {
  const auto* bytes = reinterpret_cast<const std::byte*>(first);
  return reinterpret_cast<const Struct*>(bytes + index * required(first, what).struct_size);
}

std::vector<OptimizerOptions> optimizers_of(const ls_optimizer_options* given, std::size_t count) {
  std::vector<OptimizerOptions> optimizers;
  for (std::size_t i = 0; i < count; ++i) optimizers.push_back(optimizer_of(element_of(given, i, "optimizers")));
  return optimizers;
}

SharedTensor shared_tensor_of(const ls_shared_tensor* given) {
  const ls_shared_tensor taken = take(given, ls_shared_tensor{}, "shared tensor");
  const auto dtype = static_cast<lockstep::DType>(taken.dtype);
  lockstep::size_of(dtype);  // refuses an unknown number
  return {.name = taken.name != nullptr ? taken.name : "",
          .dtype = dtype,
          .elements = taken.elements,
          .group = taken.group};
}

SharedValues shared_values_of(const ls_shared_values* given) {
  const ls_shared_values nothing{.struct_size = sizeof(ls_shared_values), .weights = nullptr, .state = {}, .steps = -1};
  const ls_shared_values taken = take(given, nothing, "shared values");
  return {.weights = taken.weights, .state = {taken.state[0], taken.state[1], taken.state[2]}, .steps = taken.steps};
}

lockstep::SharedWeights& checked(ls_shared_weights* weights, std::size_t tensor) {
  lockstep::SharedWeights& shared = required(weights, "shared weights").weights;
  if (tensor < shared.count()) return shared;
  throw lockstep::Error(lockstep::ErrorCode::invalid_argument, "there is no shared tensor of that number");
}

}  // namespace

extern "C" {

int ls_shared_weights_make(ls_engine* engine, const ls_shared_tensor* tensors, size_t count,
                           const ls_optimizer_options* optimizers, size_t optimizer_count,
                           ls_shared_weights** weights) {
  return guarded([&] {
    required(weights, "weights") = nullptr;
    std::vector<SharedTensor> shared;
    for (std::size_t i = 0; i < count; ++i) shared.push_back(shared_tensor_of(element_of(tensors, i, "tensors")));
    *weights = new ls_shared_weights{lockstep::SharedWeights(required(engine, "engine").engine, std::move(shared),
                                                             optimizers_of(optimizers, optimizer_count))};
  });
}

int ls_shared_weights_place(ls_shared_weights* weights, size_t tensor, const void** values, const void* state[3],
                            void** gradient) {
  return guarded([&] {
    lockstep::SharedWeights& shared = checked(weights, tensor);
    required(values, "values") = shared.weights(tensor);
    for (std::size_t i = 0; i < lockstep::kMostOptimizerStates; ++i) {
      (&required(state, "state"))[i] = i < shared.states(tensor) ? shared.state(tensor, i) : nullptr;
    }
    if (gradient != nullptr) *gradient = shared.gradient(tensor);
  });
}

int ls_shared_weights_serve(ls_shared_weights* weights, int (*meant)(void), int* served) {
  return guarded(
      [&] { required(served, "served") = required(weights, "shared weights").weights.serve_gradients(meant) ? 1 : 0; });
}

int ls_shared_weights_gradients(ls_shared_weights* weights, const void** first, size_t* bytes) {
  return guarded([&] {
    const auto gradients = required(weights, "shared weights").weights.gradients();
    required(first, "first") = gradients.data();
    required(bytes, "bytes") = gradients.size();
  });
}

int ls_shared_weights_steps(ls_shared_weights* weights, size_t tensor, int64_t* steps) {
  return guarded([&] { required(steps, "steps") = checked(weights, tensor).steps(tensor); });
}

int ls_shared_weights_hash(ls_shared_weights* weights, uint64_t* hash) {
  return guarded([&] { required(hash, "hash") = required(weights, "shared weights").weights.hash(); });
}

int ls_shared_weights_load(ls_shared_weights* weights, const ls_shared_values* values, size_t count) {
  return guarded([&] {
    std::vector<SharedValues> taken;
    for (std::size_t i = 0; i < count; ++i) taken.push_back(shared_values_of(element_of(values, i, "values")));
    required(weights, "shared weights").weights.load(taken);
  });
}

int ls_shared_weights_update(ls_shared_weights* weights, const ls_optimizer_options* optimizers, size_t optimizer_count,
                             const ls_reduce_options* options, const void* const* gradients, size_t count) {
  return guarded([&] {
    ls_reduce_options preset{};
    preset.op = LS_AVERAGE;
    preset.prescale = preset.postscale = 1.0;
    const ls_reduce_options how = options != nullptr ? take(options, preset, "reduce options") : preset;
    // In parentheses: braces would make a list of the two addresses.
    std::vector<const void*> given(gradients, gradients + (gradients != nullptr ? count : 0));
    required(weights, "shared weights")
        .weights.update({.optimizers = optimizers_of(optimizers, optimizer_count),
                         .gradients = std::move(given),
                         .op = static_cast<lockstep::ReduceOp>(how.op),
                         .prescale = how.prescale,
                         .postscale = how.postscale});
  });
}

int ls_shared_weights_recover(ls_shared_weights* weights, ls_engine* next, uint64_t* updates, int* load_was_torn) {
  return guarded([&] {
    const lockstep::Recovery found = required(weights, "shared weights").weights.recover(required(next, "next").engine);
    if (updates != nullptr) *updates = found.updates;
    if (load_was_torn != nullptr) *load_was_torn = found.load_was_torn ? 1 : 0;
  });
}

void ls_shared_weights_free(ls_shared_weights* weights) { delete weights; }

}  // extern "C"
