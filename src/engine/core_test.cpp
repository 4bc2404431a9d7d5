#include "engine/core.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>

#include "base/reduction_tree.hpp"
#include "engine/world_test.hpp"
#include "lockstep/engine.hpp"

namespace lockstep::engine {
namespace {

// Values whose sum depends on the order of additions: the exponents differ widely.
std::vector<float> values_of(int rank, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(1000 + rank));
  std::vector<float> values(elements);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(random() % 20'000) - 10'000.0F, static_cast<int>(random() % 30) - 15);
  return values;
}

std::vector<float> expected_sum(int size, std::size_t elements) {
  std::vector<std::vector<float>> leaves;
  for (int rank = 0; rank < size; ++rank) leaves.push_back(values_of(rank, elements));
  std::vector<float> sums(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    sums[i] = *reduce_tree(
        0, leaves.size(), [&](std::size_t leaf) { return std::optional(leaves[leaf][i]); },
        [](float a, float b) { return a + b; });
  }
  return sums;
}

void expect_same_bits(const std::vector<float>& expected, const float* actual, const std::string& what) {
  if (expected.empty()) return;
  EXPECT_EQ(std::memcmp(expected.data(), actual, expected.size() * sizeof(float)), 0) << what;
}

class EveryWorld : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  Over over() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

constexpr std::size_t kSizes[] = {0, 1, 5, 20, 21, 1000, 4099, 100'003};

TEST_P(EveryWorld, AllReduceIsTheFixedTreeOnEveryRank) {
  for (std::size_t elements : kSizes) {
    const auto expected = expected_sum(size(), elements);
    run_world(over(), size(), [&](Core& core) {
      auto values = values_of(core.options().rank, elements);
      run(core, all_reduce(values.data(), elements));
      expect_same_bits(expected, values.data(), std::to_string(elements) + " elements");
    });
  }
}

TEST_P(EveryWorld, OfTensorsSubmittedTogetherNoneIsUnderWayWhenOneIsRefused) {
  run_world(over(), size(), [&](Core& core) {
    std::vector<float> values(1000, 1.0F);
    EXPECT_THROW(core.submit_together({all_reduce(values.data(), 500, "a"), all_reduce(values.data() + 500, 500, "a")}),
                 Error);
    EXPECT_THROW(core.submit_together({all_reduce(values.data(), 500, "a"), all_reduce(nullptr, 500, "b")}), Error);
    // Were "a" under way, its name would be refused, and a second sum would come of it.
    run(core, all_reduce(values.data(), 500, "a"));
    EXPECT_EQ(values.front(), static_cast<float>(core.transport().size()));
  });
}

TEST_P(EveryWorld, TensorsInTheHeapAreReducedInPlaceAndOutOfPlace) {
  const std::size_t elements = 70'001;
  const auto expected = expected_sum(size(), elements);
  run_world(over(), size(), [&](Core& core) {
    auto* shared = core.transport().shared();
    if (shared == nullptr) return;
    const auto values = values_of(core.options().rank, elements);
    auto* input = static_cast<float*>(shared->allocate(elements * sizeof(float)));
    auto* output = static_cast<float*>(shared->allocate(elements * sizeof(float)));
    std::memcpy(input, values.data(), elements * sizeof(float));
    Request request = all_reduce(input, elements);
    request.output.data = output;
    run(core, request);
    expect_same_bits(expected, output, "out of place");
    expect_same_bits(values, input, "the input is untouched");
    run(core, all_reduce(input, elements));
    expect_same_bits(expected, input, "in place");
    shared->deallocate(input);
    shared->deallocate(output);
  });
}

TEST_P(EveryWorld, AverageDividesTheSum) {
  const std::size_t elements = 1003;
  auto expected = expected_sum(size(), elements);
  for (float& value : expected) value /= static_cast<float>(size());
  run_world(over(), size(), [&](Core& core) {
    auto values = values_of(core.options().rank, elements);
    run(core, all_reduce(values.data(), elements, "mean", ReduceOp::average));
    expect_same_bits(expected, values.data(), "average");
  });
}

TEST_P(EveryWorld, BroadcastComesFromEveryRoot) {
  for (std::size_t elements : kSizes) {
    std::vector<std::vector<float>> of_rank;
    for (int rank = 0; rank < size(); ++rank) of_rank.push_back(values_of(rank, elements));
    run_world(over(), size(), [&](Core& core) {
      for (int root = 0; root < size(); ++root) {
        auto values = of_rank[static_cast<std::size_t>(core.options().rank)];
        run(core, broadcast(values.data(), elements, root));
        expect_same_bits(of_rank[static_cast<std::size_t>(root)], values.data(), "broadcast");
      }
    });
  }
}

TEST_P(EveryWorld, NamedOperationsMeetInWhateverOrderTheyAreSubmitted) {
  constexpr std::size_t kTensors = 40;
  const std::size_t elements = 300;
  const auto expected = expected_sum(size(), elements);
  run_world(over(), size(), [&](Core& core) {
    std::vector<std::size_t> order(kTensors);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (unsigned step = 0; step < 5; ++step) {
      std::shuffle(order.begin(), order.end(), std::mt19937(step * 100 + static_cast<unsigned>(core.options().rank)));
      std::vector<std::vector<float>> tensors(kTensors, values_of(core.options().rank, elements));
      std::vector<Core::OperationPtr> operations;
      core.begin_step();
      for (std::size_t tensor : order) {
        operations.push_back(
            core.submit(all_reduce(tensors[tensor].data(), elements, "t" + std::to_string(tensor)), true));
      }
      run(core, barrier());  // overtakes nothing and is overtaken by nothing it needs
      EXPECT_EQ(core.end_step(), step + 1);
      for (const auto& operation : operations) Core::check(*operation);
      for (const auto& tensor : tensors) expect_same_bits(expected, tensor.data(), "named");
    }
  });
}

TEST_P(EveryWorld, ABarrierEndsWhileANamedOperationIsPending) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    std::vector<float> values(100, 1.0F);
    Core::OperationPtr early;
    if (core.options().rank == 0) early = core.submit(all_reduce(values.data(), values.size(), "late"), true);
    run(core, barrier());
    if (core.options().rank == 0) {
      EXPECT_FALSE(early->ended());
    }
    run(core, barrier());  // the others join in only after rank 0 has looked
    if (core.options().rank != 0) {
      early = core.submit(all_reduce(values.data(), values.size(), "late"), true);
    }
    core.wait(*early);
    Core::check(*early);
    EXPECT_EQ(values[99], static_cast<float>(size()));
  });
}

TEST_P(EveryWorld, DisagreementIsAnErrorOnAllRanksThatSaysWhoHadWhat) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    std::vector<float> values(300, 1.0F);
    const std::size_t elements = core.options().rank == size() - 1 ? 200 : 300;
    try {
      run(core, all_reduce(values.data(), elements, "grad"));
      ADD_FAILURE() << "rank " << core.options().rank << " saw no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_NE(std::string(error.what()).find("'grad'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("[300]"), std::string::npos) << error.what();
      EXPECT_NE(
          std::string(error.what()).find("rank " + std::to_string(size() - 1) + ": all-reduce (sum) of float32 [200]"),
          std::string::npos)
          << error.what();
    }
    // The engine goes on.
    run(core, all_reduce(values.data(), 300, "grad"));
    EXPECT_EQ(values[0], static_cast<float>(size()));
  });
}

// What ranks must agree on, besides the shape. All ranks but the last have the same; the error names both.
TEST_P(EveryWorld, EverythingThatRanksMustAgreeOnIsComparedAndTold) {
  if (size() == 1) return;
  struct Difference {
    const char* what;
    std::function<void(Request&)> apply;
    std::string usual;
    std::string odd;
  };
  const std::string usual = "all-reduce (sum) of float32 [3, 100]";
  const std::vector<Difference> differences = {
      {"strides",
       [](Request& request) {
         request.input.strides = request.output.strides = {1, 3};
       },
       usual, usual + " with dimensions in memory order (1, 0)"},
      {"dtype", [](Request& request) { request.input.dtype = request.output.dtype = DType::f64; }, usual,
       "all-reduce (sum) of float64 [3, 100]"},
      {"reduction", [](Request& request) { request.op = ReduceOp::max; }, usual,
       "all-reduce (max) of float32 [3, 100]"},
      {"operation",
       [](Request& request) {
         request.kind = collective::Kind::broadcast;
         request.root = 0;
       },
       usual, "broadcast of float32 [3, 100] from rank 0"},
      {"scale", [](Request& request) { request.prescale = 0.5; }, usual, usual + ", prescale 0.5"},
  };
  run_world(over(), size(), [&](Core& core) {
    const bool is_odd = core.options().rank == size() - 1;
    const std::string odd_rank = "rank " + std::to_string(size() - 1) + ": ";
    std::vector<double> memory(300, 0.0);
    for (const Difference& difference : differences) {
      Request request = all_reduce(memory.data(), 300, "grad");
      request.input.shape = request.output.shape = {3, 100};
      if (is_odd) difference.apply(request);
      try {
        run(core, request);
        ADD_FAILURE() << "rank " << core.options().rank << " saw no error about the " << difference.what;
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(error.code(), ErrorCode::mismatch) << text;
        EXPECT_NE(text.find("'grad'"), std::string::npos) << text;
        EXPECT_NE(text.find(": " + difference.usual + ";"), std::string::npos) << text;
        EXPECT_NE(text.find(odd_rank + difference.odd + "."), std::string::npos) << text;
      }
    }
    Request root = broadcast(memory.data(), 300, is_odd ? 1 : 0, "from");
    try {
      run(core, root);
      ADD_FAILURE() << "rank " << core.options().rank << " saw no error about the root";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(odd_rank + "broadcast of float32 [300] from rank 1."), std::string::npos)
          << error.what();
    }
  });
}

TEST_P(EveryWorld, ThousandsOfOperationsReuseTheLog) {
  // The log holds 4096. Other worlds differ only in how many read it: under a sanitizer, which makes them slow, they do
  // not fill it.
  const int operations = under_sanitizer() && size() != 2 ? 300 : 4500;
  run_world(over(), size(), [&](Core& core) {
    for (int i = 0; i < operations; ++i) {
      float value = 1.0F;
      run(core, all_reduce(&value, 1));
      ASSERT_EQ(value, static_cast<float>(size()));
    }
  });
}

TEST_P(EveryWorld, OperationsFromSeveralThreadsOfARank) {
  run_world(over(), size(), [&](Core& core) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&core, t, this] {
        for (int i = 0; i < 100; ++i) {
          std::vector<float> values(2000, 1.0F);
          run(core, all_reduce(values.data(), values.size(), "thread" + std::to_string(t)));
          ASSERT_EQ(values.back(), static_cast<float>(size()));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(EveryWorld, AbortReachesEveryRank) {
  run_world(over(), size(), [&](Core& core) {
    float values[100] = {};
    try {
      if (core.options().rank == size() - 1) core.abort("the data is bad");
      run(core, all_reduce(values, 100));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_NE(std::string(error.what()).find("the data is bad"), std::string::npos);
    }
  });
}

TEST_P(EveryWorld, LeavingEarlyIsNamedOnTheOthers) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    float values[100] = {};
    if (core.options().rank == 1) return core.stop();
    try {
      run(core, all_reduce(values, 100));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      EXPECT_NE(std::string(error.what()).find("lost rank 1"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, EveryWorld, testing::ValuesIn(tcp_worlds({2, 3}, {5})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

TEST(Core, MisuseThrowsAtTheCall) {
  run_world(Over::memory, 1, [&](Core& core) {
    float values[30] = {};
    auto code_of = [&](const Request& request) {
      try {
        core.submit(request, false);
      } catch (const Error& error) {
        return error.code();
      }
      return ErrorCode::internal;
    };
    Request request = all_reduce(values, 30);
    request.input.strides = request.output.strides = {2};
    EXPECT_EQ(code_of(request), ErrorCode::invalid_argument) << "gaps";
    request = all_reduce(values, 20);
    request.output.data = values + 5;
    EXPECT_EQ(code_of(request), ErrorCode::invalid_argument) << "overlap";
    request = all_reduce(nullptr, 20);
    EXPECT_EQ(code_of(request), ErrorCode::invalid_argument) << "no memory";
    EXPECT_EQ(code_of(broadcast(values, 20, 7)), ErrorCode::invalid_argument) << "no such root";
    EXPECT_THROW(core.end_step(), Error);
  });
}

TEST(Core, ANameInFlightIsRefusedAtTheCall) {
  run_world(Over::shm, 2, [&](Core& core) {
    float values[100] = {};
    Core::OperationPtr first;
    if (core.options().rank == 0) {
      first = core.submit(all_reduce(values, 100, "grad"), true);
      EXPECT_THROW(core.submit(all_reduce(values, 100, "grad"), true), Error);
      run(core, barrier());
    } else {
      run(core, barrier());
      first = core.submit(all_reduce(values, 100, "grad"), true);
    }
    core.wait(*first);
    Core::check(*first);
  });
}

void run_with_tiny_heap(const std::function<void(Core&)>& body) { run_world(Over::shm, 2, body, {}, 4096); }

TEST(Core, WhatDoesNotFitTheHeapIsReadWhereItIs) {
  run_with_tiny_heap([](Core& core) {
    for (std::size_t elements : {std::size_t{10'000}, std::size_t{400'000}}) {
      std::vector<float> values(elements, 1.5F);
      run(core, all_reduce(values.data(), elements));
      EXPECT_EQ(values, std::vector<float>(elements, 3.0F));
    }
  });
}

TEST(Core, NoRoomForWhatMustBeSharedFailsOnAllRanksAtOnceAndNothingElse) {
  run_with_tiny_heap([](Core& core) {
    float value = 1.0F;
    if (core.options().rank == 0) {
      void* all = core.transport().shared()->allocate(4096);
      ASSERT_NE(all, nullptr);
    }
    std::vector<float> values(3000, 1.0F);
    try {
      run(core, all_reduce(values.data(), values.size(), "combined", ReduceOp::adasum));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::system);
      EXPECT_NE(std::string(error.what()).find("all-reduce 'combined': rank 0 had no room for"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("LOCKSTEP_HEAP_BYTES"), std::string::npos);
    }
    run(core, all_reduce(&value, 1));
    EXPECT_EQ(value, 2.0F);
  });
}

TEST(Core, LeavesATimelineAndAFlightRecord) {
  const auto folder = std::filesystem::temp_directory_path() / ("lockstep-core-test-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  Options options;
  options.timeline = folder / "trace.json";
  options.flight_directory = folder;
  run_world(
      Over::shm, 2,
      [&](Core& core) {
        std::vector<float> values(1000, 1.0F);
        run(core, all_reduce(values.data(), 1, {}));
        run(core, all_reduce(values.data(), values.size(), "gradient"));
        if (core.options().rank == 0) core.abort("enough");
        EXPECT_THROW(run(core, all_reduce(values.data(), values.size(), "after the end")), Error);
      },
      options);
  for (const char* rank : {"0", "1"}) {
    auto content_of = [&](const std::string& name) {
      std::ifstream file(folder / name);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string flight = content_of("lockstep-flight-" + std::string(rank) + ".txt");
    EXPECT_NE(flight.find("gradient"), std::string::npos) << flight;
    EXPECT_NE(flight.find("enough"), std::string::npos) << flight;
    const std::string trace = content_of("trace." + std::string(rank) + ".json");
    EXPECT_NE(trace.find("gradient"), std::string::npos) << trace;
    EXPECT_NE(trace.find("NEGOTIATE_ALLREDUCE"), std::string::npos) << trace;
  }
  merge_timelines({folder / "trace.0.json", folder / "trace.1.json"}, folder / "merged.json");
  EXPECT_GT(std::filesystem::file_size(folder / "merged.json"), std::filesystem::file_size(folder / "trace.0.json"));
  std::filesystem::remove_all(folder);
}

TEST(Core, AStallIsReportedAndThenFails) {
  Options options;
  options.stall_warning = std::chrono::milliseconds(50);
  options.stall_limit = std::chrono::milliseconds(300);
  run_world(
      Over::shm, 2,
      [&](Core& core) {
        float values[100] = {};
        if (core.options().rank == 1) {
          // Takes part in nothing until the other has given up.
          while (!core.transport().verdict()) std::this_thread::yield();
          return;
        }
        try {
          run(core, all_reduce(values, 100, "skipped"));
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::timeout);
          EXPECT_NE(std::string(error.what()).find("for rank 1"), std::string::npos) << error.what();
        }
      },
      options);
}

}  // namespace
}  // namespace lockstep::engine
