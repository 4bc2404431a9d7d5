// An update of shared weights by itself: lockstep run -np 2 shared_update adam|sgd.
//
// Before each, every rank writes its gradients and reads all weights, as the backward and the forward pass of a step
// would: where weights and gradients lie in the caches of which core decides much of the time. Rank 0 prints the median
// with the 10 % and 90 % quantiles, and the hash of weights and state, which tells whether a change kept the bits.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/lockstep.hpp"
#include "lockstep/shared_weights.hpp"

namespace {

// A multilayer perceptron of 8.3 million parameters.
const std::vector<std::size_t> kSizes = {1'605'632, 2'048, 4'194'304, 2'048, 2'097'152, 1'024, 10'240, 10, 400'000};
constexpr int kWarmUp = 20, kUpdates = 100;

void write_gradients(lockstep::SharedWeights& weights, int rank, int step) {
  for (std::size_t tensor = 0; tensor < kSizes.size(); ++tensor) {
    auto* gradient = static_cast<float*>(weights.gradient(tensor));
    for (std::size_t i = 0; i < kSizes[tensor]; ++i) {
      const auto number = (i * 7 + static_cast<std::size_t>(step * 13 + rank * 3)) & 1023;
      gradient[i] = 1e-3F * (static_cast<float>(number) - 511.0F);
    }
  }
}

float read_weights(const lockstep::SharedWeights& weights) {
  float sum = 0.0F;
  constexpr std::size_t kLine = 16;  // elements
  for (std::size_t tensor = 0; tensor < kSizes.size(); ++tensor) {
    const auto* values = static_cast<const float*>(weights.weights(tensor));
    for (std::size_t i = 0; i < kSizes[tensor]; i += kLine) sum += values[i];
  }
  return sum;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string kind = count == 2 ? arguments[1] : "";
  if (kind != "adam" && kind != "sgd") {
    std::fprintf(stderr, "usage: lockstep run -np RANKS %s adam|sgd\n", arguments[0]);
    return 2;
  }
  using lockstep::OptimizerKind;
  const lockstep::OptimizerOptions optimizer{.kind = kind == "adam" ? OptimizerKind::adam : OptimizerKind::sgd,
                                             .learning_rate = 1e-4,
                                             .momentum = kind == "adam" ? 0.0 : 0.9};
  lockstep::Engine engine;
  std::vector<lockstep::SharedTensor> tensors;
  for (std::size_t size : kSizes) tensors.push_back({.name = std::to_string(tensors.size()), .elements = size});
  lockstep::SharedWeights weights(engine, tensors, {optimizer});
  std::vector<double> times;
  [[maybe_unused]] volatile float sum = 0.0F;  // so that the weights are read
  for (int step = 0; step < kWarmUp + kUpdates; ++step) {
    write_gradients(weights, engine.rank(), step);
    sum = read_weights(weights);
    engine.barrier();
    const auto begin = std::chrono::steady_clock::now();
    weights.update({.optimizers = {optimizer}});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (step >= kWarmUp) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  if (engine.rank() == 0) {
    std::printf("%s: %.2f ms (%.2f-%.2f), hash %016" PRIx64 "\n", kind.c_str(), times[kUpdates / 2],
                times[kUpdates / 10], times[kUpdates * 9 / 10], weights.hash());
  }
}
