// Optimizers as epilogues: whatever the number of ranks, the same weights.
#include <gtest/gtest.h>

#include "engine/world_test.hpp"
#include "optim/every_option_test.hpp"

namespace lockstep::engine {
namespace {

// Each rank keeps the state of its own slices only. The gradient comes from one rank, so that its sum has the same bits
// in every world.
std::vector<float> trained_by(int size, const OptimizerOptions& options, int steps) {
  std::vector<float> result;
  run_world(Over::shm, size, [&](Core& core) {
    const int rank = core.options().rank;
    auto weights = numbers<float>(kOptimizedElements, 1);
    const ElementRange mine =
        owned_slice(kOptimizedElements, DType::f32, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    std::vector<std::vector<float>> state(optimizer_state_count(options), std::vector<float>(mine.count));
    OptimizedTensor tensor{.weights = weights.data(), .first = mine.offset};
    for (std::size_t i = 0; i < state.size(); ++i) tensor.state[i] = state[i].data();
    for (int step = 1; step <= steps; ++step) {
      auto gradient = rank == step % size ? numbers<float>(kOptimizedElements, static_cast<std::uint64_t>(step) + 10)
                                          : std::vector<float>(kOptimizedElements, -0.0F);
      Request request = all_reduce(gradient.data(), kOptimizedElements, "gradient");
      request.output = view(weights.data(), kOptimizedElements, "gradient");
      request.epilogue = update_epilogue(options, step, {tensor});
      run(core, request);
    }
    if (rank == size - 1) result = weights;
  });
  return result;
}

TEST(FusedUpdate, TrainsToTheSameBitsInWorldsOfAnySize) {
  const int steps = under_sanitizer() ? 3 : 100;
  for (const auto& options : every_option()) {
    if (options.maximize) continue;
    const auto expected = trained_by(1, options, steps);
    for (int size : {2, 3, 4}) EXPECT_EQ(trained_by(size, options, steps), expected) << text_of(options) << ' ' << size;
    if (under_sanitizer()) break;
  }
}

}  // namespace
}  // namespace lockstep::engine
