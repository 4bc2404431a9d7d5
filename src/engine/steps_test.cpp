#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

class Steps : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  Over over() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

// What the ranks of [first, size) sum up to when each gives its number plus one.
float sum_from(int first, int size) {
  float sum = 0;
  for (int rank = first; rank < size; ++rank) sum += static_cast<float>(rank + 1);
  return sum;
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Tensor i is unused on the ranks below i: so one is used by all, and one by the last rank alone.
TEST_P(Steps, WhatARankDoesNotSubmitGoesOnWithoutItWhenItEndsTheStep) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<float>> sums;
      std::vector<std::vector<float>> means;
      core.begin_step();
      for (int i = 0; i < size(); ++i) {
        const std::size_t elements = i % 2 == 0 ? 3 : 3000;
        sums.emplace_back(elements, static_cast<float>(rank + 1));
        means.emplace_back(elements, static_cast<float>(rank + 1));
        if (rank < i) continue;
        core.submit(all_reduce(sums.back().data(), elements, fmt::format("sum{}", i)), true);
        core.submit(all_reduce(means.back().data(), elements, fmt::format("mean{}", i), ReduceOp::average), true);
      }
      core.end_step();
      for (int i = 0; i <= rank; ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(sums[at].back(), sum_from(i, size()));
        EXPECT_EQ(means[at].back(), sum_from(i, size()) / static_cast<float>(size()));
      }
    }
  });
}

TEST_P(Steps, ANameUsedTwiceInAStepMeetsItsOwnUse) {
  run_world(over(), size(), [&](Core& core) {
    for (int step = 0; step < 5; ++step) {
      core.begin_step();
      // Only the last rank uses the name in every step; the others leave it out in odd ones.
      for (int use = 0; use < 3; ++use) {
        if (step % 2 == 1 && core.options().rank != size() - 1) break;
        float value = static_cast<float>(use + 1);
        const auto operation = core.submit(all_reduce(&value, 1, "loss"), true);
        core.wait(*operation);
        Core::check(*operation);
        EXPECT_EQ(value, static_cast<float>((use + 1) * (step % 2 == 1 ? 1 : size())));
      }
      core.end_step();
    }
  });
}

// Some ranks are inside their step when they submit an operation of the user's, some have not begun it.
TEST_P(Steps, AnExclusiveStepHasOnlyWhatWasSubmittedAsAPartOfIt) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    for (int step = 0; step < 6; ++step) {
      const bool early = (rank + step) % 2 == 0;
      std::vector<float> gradient(100, static_cast<float>(rank + 1));
      float loss = 1;
      float later = 1;
      const TensorView tensor = view(gradient.data(), gradient.size(), "gradient");
      if (early) core.begin_step(/*exclusive=*/true);
      if (early) core.submit_all_reduce({.input = &tensor, .output = &tensor, .of_step = true});
      const auto pending = core.submit(all_reduce(&later, 1, "later"), true);
      const auto operation = core.submit(all_reduce(&loss, 1, "loss"), false);
      core.wait(*operation);
      EXPECT_EQ(loss, static_cast<float>(size()));
      if (!early) core.begin_step(/*exclusive=*/true);
      if (!early) core.submit_all_reduce({.input = &tensor, .output = &tensor, .of_step = true});
      core.end_step();
      EXPECT_EQ(gradient.back(), sum_from(0, size()));
      core.wait(*pending);
      EXPECT_EQ(later, static_cast<float>(size()));
    }
    float value = 1;
    const TensorView stray = view(&value, 1, "stray");
    EXPECT_NE(failure_of([&] { core.submit_all_reduce({.input = &stray, .output = &stray, .of_step = true}); }), "");
  });
}

TEST_P(Steps, RandomSetsOfTensors) {
  run_world(over(), size(), [&](Core& core) {
    constexpr std::size_t kTensors = 12;
    constexpr std::size_t kElements = 50;
    const int rank = core.options().rank;
    for (unsigned step = 0; step < 20; ++step) {
      // All ranks know who uses what; each submits in an order of its own.
      std::mt19937 common(step);
      std::vector<float> expected(kTensors, 0.0F);
      std::vector<std::size_t> mine;
      for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
        for (int peer = 0; peer < size(); ++peer) {
          if (common() % 3 == 0) continue;
          expected[tensor] += static_cast<float>(peer + 1);
          if (peer == rank) mine.push_back(tensor);
        }
      }
      std::shuffle(mine.begin(), mine.end(), std::mt19937(step * 10 + static_cast<unsigned>(rank)));
      std::vector<std::vector<float>> values(kTensors, std::vector<float>(kElements, static_cast<float>(rank + 1)));
      core.begin_step();
      for (std::size_t tensor : mine)
        core.submit(all_reduce(values[tensor].data(), kElements, std::to_string(tensor)), true);
      core.end_step();
      for (std::size_t tensor : mine) ASSERT_EQ(values[tensor][kElements - 1], expected[tensor]);
    }
  });
}

TEST_P(Steps, ARootThatLeavesItsTensorOutIsAnErrorOnTheOthers) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    std::vector<float> values(100, 1.0F);
    core.begin_step();
    if (core.options().rank == 0) {
      core.end_step();
    } else {
      core.submit(broadcast(values.data(), values.size(), 0, "weights"), true);
      EXPECT_NE(failure_of([&] { core.end_step(); }).find("rank 0, its root"), std::string::npos);
    }
    // The engine goes on, and so do the steps.
    core.begin_step();
    core.submit(all_reduce(values.data(), values.size(), "gradient"), true);
    core.end_step();
    EXPECT_EQ(values.back(), static_cast<float>(size()));
  });
}

// Rank r has r + 1 steps, then joins; afterwards all have the same number again.
TEST_P(Steps, RanksThatJoinHaveFewerSteps) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step <= rank; ++step) {
        std::vector<float> values(200, static_cast<float>(rank + 1));
        core.begin_step();
        core.submit(all_reduce(values.data(), values.size(), "gradient"), true);
        EXPECT_NE(
            failure_of([&] { core.submit({.kind = Kind::join, .input = {}, .output = {}}, false); }).find("inside"),
            std::string::npos);
        core.end_step();
        EXPECT_EQ(values.back(), sum_from(step, size()));
      }
      const auto join = core.submit({.kind = Kind::join, .input = {}, .output = {}}, false);
      core.wait(*join);
      EXPECT_EQ(join->last_joined, size() - 1);
    }
  });
}

TEST_P(Steps, ARankThatLeavesInsideAStepIsNamed) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    core.begin_step();
    core.end_step();
    core.begin_step();
    if (core.options().rank == 1) return core.stop();
    core.end_step();  // needs nobody: the end of the step before is known
    core.begin_step();
    EXPECT_NE(failure_of([&] { core.end_step(); }).find("lost rank 1"), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Steps,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 5)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, Steps, testing::ValuesIn(tcp_worlds({3}, {4})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

}  // namespace
}  // namespace lockstep::engine
