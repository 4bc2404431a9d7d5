// Epilogues: every element once, by its owner, with the right values, and what they leave reaches everybody.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "collective/routes.hpp"
#include "engine/request.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

constexpr std::size_t kLineElements = 128 / sizeof(float);

// Which rank saw each element, counted by all ranks of the world together.
class Coverage {
 public:
  explicit Coverage(std::size_t elements) : seen_(elements), by_(elements) {}

  void note(const ReducedSlice& slice, int rank) {
    for (std::size_t i = slice.offset; i < slice.offset + slice.count; ++i) {
      seen_[i].fetch_add(1);
      by_[i].store(rank);
    }
  }
  void expect_each_once() const {
    for (std::size_t i = 0; i < seen_.size(); ++i) ASSERT_EQ(seen_[i].load(), 1) << "element " << i;
  }
  int owner(std::size_t element) const { return by_[element].load(); }

 private:
  std::vector<std::atomic<int>> seen_;
  std::vector<std::atomic<int>> by_;
};

float input_of(int rank, std::size_t i) { return static_cast<float>(rank + 1) * static_cast<float>(i % 97); }

std::vector<float> inputs_of(int rank, std::size_t elements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = input_of(rank, i);
  return values;
}

float sum_of(int size, std::size_t i) { return static_cast<float>(size * (size + 1) / 2) * static_cast<float>(i % 97); }

class EpilogueInWorlds : public testing::TestWithParam<std::tuple<Over, int>> {};

// Gradients in, weights out: what a fused optimizer does.
TEST_P(EpilogueInWorlds, UpdatesWeightsEachElementOnceByItsOwner) {
  const auto [over, size] = GetParam();
  const std::size_t most = under_sanitizer() ? 30'001 : 300'001;
  for (std::size_t elements : {std::size_t{1}, std::size_t{20}, std::size_t{1000}, most}) {
    Coverage coverage(elements);
    run_world(over, size, [&, size = size](Core& core) {
      const int rank = core.options().rank;
      auto gradient = inputs_of(rank, elements);
      std::vector<float> weights(elements, 10.0F);
      Request request = all_reduce(gradient.data(), elements, "weights");
      request.output = view(weights.data(), elements, "weights");
      request.epilogue = [&](const ReducedSlice& slice) {
        coverage.note(slice, rank);
        EXPECT_EQ(slice.offset % kLineElements, 0U) << "two ranks write to one line";
        auto* values = static_cast<float*>(slice.values);
        for (std::size_t i = 0; i < slice.count; ++i) {
          EXPECT_EQ(values[i], sum_of(size, slice.offset + i));
          values[i] = weights[slice.offset + i] - 0.5F * values[i];  // the old weights are still there
        }
      };
      run(core, request);
      for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(weights[i], 10.0F - 0.5F * sum_of(size, i)) << i;
      EXPECT_EQ(gradient, inputs_of(rank, elements));
    });
    coverage.expect_each_once();
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
      const auto mine = owned_slice(elements, DType::f32, rank, static_cast<std::size_t>(size));
      for (std::size_t i = mine.offset; i < mine.offset + mine.count; ++i) {
        ASSERT_EQ(coverage.owner(i), static_cast<int>(rank)) << i;
      }
    }
  }
}

TEST_P(EpilogueInWorlds, InPlaceAndInTheHeap) {
  const auto [over, size] = GetParam();
  constexpr std::size_t kElements = 70'000;
  run_world(over, size, [&, size = size](Core& core) {
    auto* shared = core.transport().shared();
    const auto given = inputs_of(core.options().rank, kElements);
    std::vector<float> own = given;
    auto* data = own.data();
    if (shared != nullptr) {
      data = static_cast<float*>(shared->allocate(kElements * sizeof(float)));
      std::copy(given.begin(), given.end(), data);
    }
    Request request = all_reduce(data, kElements);
    request.epilogue = [](const ReducedSlice& slice) {
      for (std::size_t i = 0; i < slice.count; ++i) static_cast<float*>(slice.values)[i] += 1.0F;
    };
    run(core, request);
    for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(data[i], sum_of(size, i) + 1.0F);
    if (shared != nullptr) shared->deallocate(data);
  });
}

TEST_P(EpilogueInWorlds, ReduceAndReduceScatter) {
  const auto [over, size] = GetParam();
  constexpr std::size_t kElements = 10'007;
  Coverage reduced(kElements), scattered(kElements);
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank, root = size - 1;
    auto input = inputs_of(rank, kElements);
    std::vector<float> output(kElements);
    auto noting = [&](Coverage& coverage) {
      return [&coverage, rank, size](const ReducedSlice& slice) {
        coverage.note(slice, rank);
        for (std::size_t i = 0; i < slice.count; ++i) {
          EXPECT_EQ(static_cast<float*>(slice.values)[i], sum_of(size, slice.offset + i));
          static_cast<float*>(slice.values)[i] *= -1.0F;
        }
      };
    };
    Request request{.kind = Kind::reduce, .input = view(input.data(), kElements), .output = {}, .root = root};
    if (rank == root) request.output = view(output.data(), kElements);
    request.epilogue = noting(reduced);
    run(core, request);
    for (std::size_t i = 0; rank == root && i < kElements; ++i) ASSERT_EQ(output[i], -sum_of(size, i));

    request = {.kind = Kind::reduce_scatter, .input = view(input.data(), kElements), .output = {}};
    request.epilogue = noting(scattered);
    const auto operation = core.submit(request, true);
    core.wait(*operation);
    Core::check(*operation);
    const auto part = collective::equal_part(kElements, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    const auto* got = static_cast<const float*>(operation->result.data);
    for (std::int64_t i = 0; i < part.count; ++i) {
      ASSERT_EQ(got[i], -sum_of(size, static_cast<std::size_t>(part.first + i)));
    }
  });
  reduced.expect_each_once();
  scattered.expect_each_once();
}

TEST_P(EpilogueInWorlds, OneThatThrowsAbortsTheJobOnAllRanksWithItsText) {
  const auto [over, size] = GetParam();
  constexpr std::size_t kElements = 100'000;
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    auto data = inputs_of(rank, kElements);
    Request request = all_reduce(data.data(), kElements, "layer");
    request.epilogue = [rank, size](const ReducedSlice&) {
      if (rank == size / 2) throw std::runtime_error("the learning rate is not a number");
    };
    for (int round = 0; round < 2; ++round) {  // the verdict stays
      try {
        run(core, request);
        ADD_FAILURE() << "nobody noticed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::aborted);
        const std::string text = error.what();
        EXPECT_NE(text.find(fmt::format("rank {} failed in all-reduce 'layer'", size / 2)), std::string::npos) << text;
        EXPECT_NE(text.find("the learning rate is not a number"), std::string::npos) << text;
      }
    }
  });
}

TEST_P(EpilogueInWorlds, AllRanksMustHaveOneOrNone) {
  const auto [over, size] = GetParam();
  if (size == 1) return;
  run_world(over, size, [&](Core& core) {
    std::vector<float> data(100, 1.0F);
    Request request = all_reduce(data.data(), data.size());
    if (core.options().rank == 0) request.epilogue = [](const ReducedSlice&) { ADD_FAILURE() << "called"; };
    try {
      run(core, request);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_NE(std::string(error.what()).find("with an epilogue"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, EpilogueInWorlds,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 4, 5)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, EpilogueInWorlds, testing::ValuesIn(tcp_worlds({3}, {2, 4, 5})),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lockstep::engine
