// Shared weights through the engine, with ranks as threads.
#include "lockstep/shared_weights.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/memory_node.hpp"
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

// As if local rank i were on memory node `nodes[i]` ("0,1"); as it is where empty.
class OnNodes {
 public:
  explicit OnNodes(const std::string& nodes) { ::setenv("LOCKSTEP_MEMORY_NODE", nodes.c_str(), 1); }
  ~OnNodes() { ::unsetenv("LOCKSTEP_MEMORY_NODE"); }
};

// Two tensors, five steps; every rank gives the gradient in another way.
std::vector<float> trained_by_ranks(int size, const std::string& nodes = "", std::size_t copies = 1) {
  const OnNodes on_nodes(nodes);
  std::vector<float> result;
  std::mutex mutex;
  std::set<std::uint64_t> hashes;
  const auto words = with_ranks(size, [&](Engine& engine) {
    SharedWeights weights(engine, {{.name = "large", .elements = kLarge}, {.name = "small", .elements = 3}}, {kAdam});
    EXPECT_EQ(weights.copies(), copies);
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
  EXPECT_EQ(trained_by_ranks(2, "0,1", 2), expected);
  EXPECT_EQ(trained_by_ranks(4, "0,0,1,1", 2), expected);
  EXPECT_EQ(trained_by_ranks(4, "2,0,2,1", 3), expected);
  EXPECT_EQ(trained_by_ranks(2, "1", 1), expected);  // all on one
}

TEST(SharedWeights, TrainInTwoCopiesAsInOne) {
  EXPECT_EQ(trained_by_ranks(3, "0,0,1", 2), trained_by_ranks(3));
  EXPECT_EQ(trained_by_ranks(4, "0,0,0,1", 2), trained_by_ranks(4));
}

// Where in its file a byte lies.
std::uint64_t offset_of(const void* byte) {
  const auto address = reinterpret_cast<std::uintptr_t>(byte);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t first = 0, end = 0, offset = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx", &first, &end, &offset) != 3) continue;
    if (first <= address && address < end) return offset + (address - first);
  }
  return 0;
}

TEST(SharedWeights, LieOnceForEachNodeAndTheirStateOnce) {
  const OnNodes nodes("0,1,0");
  std::vector<std::uint64_t> weights_at(3), state_at(3);
  const auto words = with_ranks(3, [&](Engine& engine) {
    SharedWeights weights(engine, {{.name = "a", .elements = kLarge}}, {kAdam});
    weights_at[static_cast<std::size_t>(engine.rank())] = offset_of(weights.weights(0));
    state_at[static_cast<std::size_t>(engine.rank())] = offset_of(weights.state(0, 1));
    engine.barrier();
  });
  for (const auto& word : words) EXPECT_EQ(word, "");
  EXPECT_EQ(weights_at[0], weights_at[2]);
  EXPECT_GE(weights_at[1], weights_at[0] + kLarge * sizeof(float));
  EXPECT_EQ(std::set(state_at.begin(), state_at.end()).size(), 1U);
}

// The mode that the kernel has for the memory there, and the node, if there is one alone.
std::pair<int, int> policy_of(const void* at) {
  int mode = -1;
  unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
  if (::syscall(SYS_get_mempolicy, &mode, nodes, 1024, at, MPOL_F_ADDR) != 0) return {-1, -1};
  for (int node = 0; node < 64; ++node) {
    if (nodes[0] == 1UL << node) return {mode, node};
  }
  return {mode, -1};
}

// Said by the rank that runs there, and in force for all who map it. No machine has node 1023: there it stays as it is.
TEST(SharedWeights, LieOnTheNodeOfThoseWhoUseThem) {
  alignas(4096) static std::byte page[4096];
  if (!prefer_memory_node(page, sizeof page, 0)) return;  // a container may forbid it
  const OnNodes nodes("0,1023");
  const auto words = with_ranks(2, [](Engine& engine) {
    SharedWeights weights(engine, {{.name = "a", .elements = kLarge}}, {kAdam});
    const std::pair near(static_cast<int>(MPOL_PREFERRED), 0), anywhere(static_cast<int>(MPOL_DEFAULT), -1);
    const auto& expected = engine.rank() == 0 ? near : anywhere;
    EXPECT_EQ(policy_of(weights.weights(0)), expected);
    EXPECT_EQ(policy_of(weights.gradient(0)), expected);
    const auto* state = static_cast<const float*>(weights.state(0, 1));
    EXPECT_EQ(policy_of(state), near);  // its first part is that of rank 0, whoever looks
    EXPECT_EQ(policy_of(state + kLarge - 1), anywhere);
  });
  for (const auto& word : words) EXPECT_EQ(word, "");
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
void go_on_with_survivors(const std::string& nodes, std::size_t copies_before, std::size_t copies_after) {
  const OnNodes on_nodes(nodes);
  const auto words = with_ranks(3, [&](Engine& engine) {
    const OptimizerOptions sgd{.learning_rate = 1.0};
    SharedWeights weights(engine, {{.name = "a", .elements = 2}}, {sgd});
    EXPECT_EQ(weights.copies(), copies_before);
    const float given[2] = {-3.0F, -6.0F};
    weights.update({.optimizers = {sgd}, .gradients = {given}});
    if (engine.rank() == 1) throw Error(ErrorCode::internal, "dies");
    EXPECT_THROW(weights.update({.optimizers = {sgd}, .gradients = {given}}), Error);
    const auto next = engine.continue_with_survivors();
    EXPECT_EQ(weights.recover(*next).updates, 1U);
    EXPECT_EQ(weights.copies(), copies_after);
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

TEST(SharedWeights, GoOnWithSurvivors) { go_on_with_survivors("", 1, 1); }
TEST(SharedWeights, GoOnWithSurvivorsInTwoCopies) { go_on_with_survivors("0,0,1", 2, 2); }
TEST(SharedWeights, GoOnWithoutTheCopyOfTheDead) { go_on_with_survivors("0,1,0", 2, 1); }

TEST(SharedWeights, RefuseANodeThatIsNone) {
  const OnNodes nodes("first");
  EXPECT_THROW(SharedWeights(*std::make_unique<Engine>(Options()), {{.name = "a", .elements = 3}}, {kAdam}), Error);
}

// One too few: the rank that has none says so, and the others do not wait for it.
TEST(SharedWeights, TellAllRanksThatOneHasNoNode) {
  const OnNodes nodes("0,1");
  const auto words = with_ranks(3, [](Engine& engine) {
    try {
      SharedWeights(engine, {{.name = "a", .elements = 3}}, {kAdam});
    } catch (const Error& error) {
      engine.barrier();  // all have come here, and the engine is as good as before
      throw;
    }
  });
  for (const std::size_t rank : {0U, 1U}) EXPECT_NE(words[rank].find("rank 2 could not share"), std::string::npos);
  EXPECT_NE(words[2].find("LOCKSTEP_MEMORY_NODE=0,1 has no memory node for local rank 2"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
