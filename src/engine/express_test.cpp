// The short cut and the ordinary way must meet: whatever way each rank comes, the results are the same.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

class Express : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

// 1, 2, ... of rank 0; twice that of rank 1, and so on.
std::vector<float> multiples_of(int rank, std::size_t elements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i)
    values[i] = static_cast<float>((i % 1000 + 1) * (static_cast<std::size_t>(rank) + 1));
  return values;
}

void expect_sum(int size, const float* actual, std::size_t elements) {
  const auto factor = static_cast<float>(size * (size + 1) / 2);
  for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(actual[i], factor * static_cast<float>(i % 1000 + 1)) << i;
}

void reduce_and_check(Core& core, std::size_t elements, bool in_heap) {
  const auto values = multiples_of(core.options().rank, elements);
  const std::size_t bytes = elements * sizeof(float);
  std::vector<float> own(values);
  float* data = own.data();
  if (in_heap) {
    data = static_cast<float*>(core.transport().shared()->allocate(bytes));
    std::copy(values.begin(), values.end(), data);
  }
  run(core, all_reduce(data, elements));
  expect_sum(core.options().size, data, elements);
  if (in_heap) core.transport().shared()->deallocate(data);
}

// As a caller that does not sleep in the call: what is left to wait for, if anything, is in `rest`.
bool begin_at_once(Core& core, std::vector<float>& values, Core::OperationPtr& rest) {
  const TensorView tensor = view(values.data(), values.size());
  return core.run_express({.kind = collective::Kind::all_reduce, .input = &tensor, .output = &tensor}, &rest);
}

void finish(Core& core, const Core::OperationPtr& operation, const std::vector<float>& values) {
  if (operation) {
    core.wait(*operation);
    Core::check(*operation);
  }
  expect_sum(core.options().size, values.data(), values.size());
}

// What all ranks do is decided by one seed; how each comes to it, by another of its own.
TEST_P(Express, MeetsTheOrdinaryWayInEveryMixture) {
  run_roomy_world(size(), [&](Core& core) {
    std::mt19937 common(7);
    std::mt19937 own(static_cast<unsigned>(core.options().rank) + 100);
    constexpr std::size_t kElements[] = {1, 12, 13, 512, 513, 5000, 40'000, 150'000};
    std::vector<std::pair<Core::OperationPtr, std::vector<float>>> waiting;
    waiting.reserve(1000);
    for (int call = 0; call < 200; ++call) {
      const unsigned what = common() % 4;
      const std::size_t elements = kElements[common() % std::size(kElements)];
      if (what == 0) {
        run(core, barrier());
      } else if (what == 1) {
        const int root = static_cast<int>(common() % static_cast<unsigned>(size()));
        auto values = multiples_of(core.options().rank, elements);
        run(core, broadcast(values.data(), elements, root));
        ASSERT_EQ(values.back(), multiples_of(root, elements).back());
      } else if (own() % 2 != 0) {
        reduce_and_check(core, elements, own() % 2 == 0);
      } else {  // this rank goes on, and asks for the result later
        waiting.emplace_back(nullptr, multiples_of(core.options().rank, elements));
        auto& [operation, values] = waiting.back();
        const bool begun = own() % 2 != 0 && begin_at_once(core, values, operation);
        if (!begun) operation = core.submit(all_reduce(values.data(), elements), true);
        if (!operation) expect_sum(size(), values.data(), elements);
      }
      if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      if (own() % 8 != 0) continue;
      for (auto& [operation, values] : waiting) finish(core, operation, values);
      waiting.clear();
    }
    for (auto& [operation, values] : waiting) finish(core, operation, values);
    run(core, barrier());
  });
}

TEST_P(Express, NeedsNoNotices) {
  run_roomy_world(size(), [&](Core& core) {
    for (int call = 0; call < 100; ++call) reduce_and_check(core, call % 2 == 0 ? 5 : 5000, true);
    EXPECT_EQ(trace::Counters::value_of(core.recorder().counters().snapshot(), "notices"), 0U);
  });
}

TEST_P(Express, ARankThatIsLateFindsTheOffers) {
  run_roomy_world(size(), [&](Core& core) {
    for (int late = 0; late < size(); ++late) {
      if (core.options().rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      reduce_and_check(core, 100, false);
      if (core.options().rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      reduce_and_check(core, 30'000, true);
    }
  });
}

TEST_P(Express, WhatIsBegunAtOnceAndLeftAloneEndsWithoutItsCaller) {
  std::atomic<bool> begun = false;
  run_roomy_world(size(), [&](Core& core) {
    if (core.options().rank != 0) {
      begun.wait(false);
      reduce_and_check(core, 5000, false);
      run(core, barrier("end"));
      return;
    }
    auto values = multiples_of(0, 5000);
    Core::OperationPtr rest;
    EXPECT_TRUE(begin_at_once(core, values, rest));
    begun = true;
    begun.notify_all();
    ASSERT_TRUE(rest) << "nobody else has come yet";
    run(core, barrier("end"));
    finish(core, rest, values);
  });
}

TEST_P(Express, DisagreementIsAnErrorOnAllRanksAndNothingElse) {
  run_roomy_world(size(), [&](Core& core) {
    std::vector<float> values(6, 1.0F);
    for (int round = 0; round < 20; ++round) {
      Request request = all_reduce(values.data(), 6);
      if (core.options().rank == round % size()) request.input.shape = request.output.shape = {2, 3};
      try {
        run(core, request);
        ADD_FAILURE() << "nobody noticed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::mismatch);
        EXPECT_NE(std::string(error.what()).find("[2, 3]"), std::string::npos) << error.what();
      }
      reduce_and_check(core, 6, false);
    }
  });
}

TEST_P(Express, GoesOnAfterAJoin) {
  run_roomy_world(size(), [&](Core& core) {
    for (int round = 0; round < 5; ++round) {
      for (int call = 0; call < 11; ++call) reduce_and_check(core, 10, false);
      if (core.options().rank != 0) {  // rank 0 has no more data, the others do
        std::vector<float> values(10, 1.0F);
        run(core, all_reduce(values.data(), 10));
        EXPECT_GE(values.front(), static_cast<float>(size() - 1));
      }
      Request join;
      join.kind = collective::Kind::join;
      run(core, join);
    }
    reduce_and_check(core, 2000, true);
  });
}

TEST_P(Express, ThreadsOfOneRankDoNotDisturbIt) {
  run_roomy_world(size(), [&](Core& core) {
    std::thread other([&] {
      for (int call = 0; call < 200; ++call) {
        std::vector<float> values = multiples_of(core.options().rank, 700);
        run(core, all_reduce(values.data(), values.size(), "named"));
        expect_sum(size(), values.data(), values.size());
      }
    });
    for (int call = 0; call < 150; ++call) reduce_and_check(core, call % 3 == 0 ? 5000 : 3, call % 2 == 0);
    other.join();
  });
}

TEST(ExpressPair, APeerThatLeftIsNamed) {
  auto transports = make_world(Over::shm, 2);
  Options options = world_options(0, 2);
  options.local_size = 1;
  Core core(options, std::move(transports[0]));
  {
    options.rank = 1;
    Core other(options, std::move(transports[1]));
  }
  try {
    run(core, barrier());
    ADD_FAILURE() << "nobody is there to meet";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Express, testing::Values(2, 3, 4));

}  // namespace
}  // namespace lockstep::engine
