// Shared weights through the engine, with ranks as threads.
#include "lockstep/shared_weights.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.hpp"
#include "optim/every_option_test.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kLarge = 30'000;
const OptimizerOptions kAdam{.kind = OptimizerKind::adam, .learning_rate = 0.01};

// Runs `body` on ranks that are threads of this process, each with an engine of its own; words of those that threw.
std::vector<std::string> with_ranks(int size, const std::function<void(Engine&)>& body) {
  static std::atomic<std::uint32_t> epoch{0};
  const std::uint32_t own_epoch = epoch++;
  std::vector<std::string> words(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Options options;
      options.rank = options.local_rank = rank;
      options.size = options.local_size = size;
      options.job = "shared-weights-test-" + std::to_string(::getpid());
      options.secret = std::string(32, 'w');
      options.epoch = own_epoch;
      options.heap_bytes = 1 << 20;
      try {
        Engine engine(options);
        body(engine);
        engine.barrier();
      } catch (const Error& error) {
        words[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return words;
}

std::vector<float> shared_floats(const SharedWeights& weights, std::size_t tensor, std::size_t count) {
  const auto* first = static_cast<const float*>(weights.weights(tensor));
  return {first, first + count};
}

// Two tensors, five steps; every rank gives the gradient in another way.
std::vector<float> trained_by_ranks(int size) {
  std::vector<float> result;
  std::mutex mutex;
  std::set<std::uint64_t> hashes;
  const auto words = with_ranks(size, [&](Engine& engine) {
    SharedWeights weights(engine, {{.name = "large", .elements = kLarge}, {.name = "small", .elements = 3}}, {kAdam});
    const auto large = numbers<float>(kLarge, 1), small = numbers<float>(3, 2);
    const bool first = engine.rank() == 0;  // what the others give is not looked at
    weights.load({{.weights = first ? large.data() : nullptr, .state = {}}, {.weights = small.data(), .state = {}}});
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const auto gradient = numbers<float>(kLarge, 10 + step), other = numbers<float>(3, 20 + step);
      std::memcpy(weights.gradient(0), gradient.data(), kLarge * sizeof(float));
      weights.update({.optimizers = {kAdam}, .gradients = {weights.gradient(0), other.data()}});
    }
    EXPECT_EQ(weights.updates(), 5U);
    EXPECT_EQ(weights.steps(1), 5);
    const std::uint64_t hash = weights.hash();
    const std::lock_guard lock(mutex);
    hashes.insert(hash);
    result = shared_floats(weights, 0, kLarge);
    EXPECT_NE(static_cast<const float*>(weights.state(1, 1))[2], 0.0F);
  });
  for (const auto& word : words) EXPECT_EQ(word, "");
  EXPECT_EQ(hashes.size(), 1U);
  return result;
}

TEST(SharedWeights, TrainAsOneRankByItself) {
  auto expected = numbers<float>(kLarge, 1);
  std::vector<float> mean(kLarge), square(kLarge);
  OptimizedTensor tensor{.weights = expected.data(), .state = {mean.data(), square.data()}};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    auto values = numbers<float>(kLarge, 10 + step);
    update_weights(kAdam, static_cast<std::int64_t>(step), tensor, 0, kLarge, values.data());
    std::memcpy(expected.data(), values.data(), kLarge * sizeof(float));
  }
  // All ranks give the same gradient, so its average has the same bits when their number is a power of two.
  for (int size : {1, 2, 4}) EXPECT_EQ(trained_by_ranks(size), expected) << size << " ranks";
}

TEST(SharedWeights, LeaveOutTensorsWithoutAGradient) {
  const auto words = with_ranks(2, [](Engine& engine) {
    const OptimizerOptions sgd{.learning_rate = 1.0};
    SharedWeights weights(engine, {{.name = "a", .elements = 2}, {.name = "b", .elements = 2}}, {sgd});
    const float given[2] = {-1.0F, -2.0F};
    const bool first = engine.rank() == 0;
    weights.update({.optimizers = {sgd}, .gradients = {first ? given : nullptr, nullptr}, .op = ReduceOp::sum});
    EXPECT_EQ(shared_floats(weights, 0, 2), (std::vector<float>{1.0F, 2.0F}));
    EXPECT_EQ(shared_floats(weights, 1, 2), (std::vector<float>{0.0F, 0.0F}));
    EXPECT_EQ(weights.steps(0), 1);
    EXPECT_EQ(weights.steps(1), 0);
  });
  for (const auto& word : words) EXPECT_EQ(word, "");
}

TEST(SharedWeights, TellAllRanksThatTheyWantDifferentThings) {
  const auto tensors = with_ranks(2, [](Engine& engine) {
    SharedWeights(engine, {{.name = "a", .elements = static_cast<std::size_t>(engine.rank()) + 1}}, {kAdam});
  });
  for (const auto& word : tensors) EXPECT_NE(word.find("rank 1 wants to share other tensors"), std::string::npos);
  const auto updates = with_ranks(2, [](Engine& engine) {
    SharedWeights weights(engine, {{.name = "a", .elements = 3}}, {kAdam});
    OptimizerOptions other = kAdam;
    other.learning_rate = 0.1 * (engine.rank() + 1);
    EXPECT_THROW(weights.update({.optimizers = {other}}), Error);
    EXPECT_EQ(weights.updates(), 0U);
    weights.update({.optimizers = {kAdam}});
    EXPECT_EQ(weights.updates(), 1U);
  });
  for (const auto& word : updates) EXPECT_EQ(word, "");
}

TEST(SharedWeights, RefuseWhatCannotBeShared) {
  Options options;
  options.local_size = 1;
  options.size = 1;
  Engine alone(options);
  EXPECT_THROW(SharedWeights(alone, {{.name = "a", .elements = 3, .group = 1}}, {kAdam}), Error);
  EXPECT_THROW(SharedWeights(alone, {{.name = "a", .dtype = DType::i64, .elements = 3}}, {kAdam}), Error);
  SharedWeights weights(alone, {{.name = "a", .elements = 3}}, {kAdam});
  EXPECT_THROW(weights.state(0, 2), Error);
  EXPECT_THROW(weights.load({}), Error);
}

// Survivors who are threads: the dead one's engine has gone, and its object was left as it was.
TEST(SharedWeights, GoOnWithSurvivors) {
  const auto words = with_ranks(3, [](Engine& engine) {
    const OptimizerOptions sgd{.learning_rate = 1.0};
    SharedWeights weights(engine, {{.name = "a", .elements = 2}}, {sgd});
    const float given[2] = {-3.0F, -6.0F};
    weights.update({.optimizers = {sgd}, .gradients = {given}});
    if (engine.rank() == 1) throw Error(ErrorCode::internal, "dies");
    EXPECT_THROW(weights.update({.optimizers = {sgd}, .gradients = {given}}), Error);
    const auto next = engine.continue_with_survivors();
    EXPECT_EQ(weights.recover(*next).updates, 1U);
    weights.update({.optimizers = {sgd}, .gradients = {given}});
    EXPECT_EQ(weights.updates(), 2U);
    EXPECT_EQ(shared_floats(weights, 0, 2), (std::vector<float>{6.0F, 12.0F}));
    next->barrier();
    throw Error(ErrorCode::internal, "done");  // the old engine has no barrier any more
  });
  EXPECT_EQ(words[0], "done");
  EXPECT_EQ(words[1], "dies");
  EXPECT_EQ(words[2], "done");
}

}  // namespace
}  // namespace lockstep
