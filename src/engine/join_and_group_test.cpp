#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

std::string failure_of(Core& core, const Request& request) {
  try {
    run(core, request);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

int join(Core& core) {
  const auto operation = core.submit({.kind = Kind::join, .input = {}, .output = {}}, false);
  core.wait(*operation);
  Core::check(*operation);
  return operation->last_joined;
}

class JoinAndGroup : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  Over over() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

// Rank r has r + 1 batches. Each step sums what is left, and all agree on who was last.
TEST_P(JoinAndGroup, UnevenDataEndsForEverybody) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step <= rank; ++step) {
        // Ranks step, step + 1, ... are still there.
        float expected = 0;
        for (int peer = step; peer < size(); ++peer) expected += static_cast<float>(peer);
        for (std::size_t elements : {1, 1000}) {
          std::vector<float> sums(elements, static_cast<float>(rank));
          run(core, all_reduce(sums.data(), elements));
          EXPECT_EQ(sums.back(), expected);
          std::vector<float> mean(elements, static_cast<float>(rank));
          run(core, all_reduce(mean.data(), elements, {}, ReduceOp::average));
          EXPECT_EQ(mean.back(), expected / static_cast<float>(size()));
          std::vector<float> product(elements, 1.0F);
          run(core, all_reduce(product.data(), elements, {}, ReduceOp::product));
          EXPECT_EQ(product.back(), 1.0F);
          Request by_contributors = all_reduce(mean.data(), elements, {}, ReduceOp::average);
          by_contributors.by_contributors = true;
          std::fill(mean.begin(), mean.end(), 7.0F);
          run(core, by_contributors);
          EXPECT_EQ(mean.back(), 7.0F);

          const auto gathered =
              core.submit({.kind = Kind::all_gather, .input = view(sums.data(), elements), .output = {}}, true);
          core.wait(*gathered);
          Core::check(*gathered);
          EXPECT_EQ(gathered->result.elements(), static_cast<std::int64_t>(elements) * (size() - step));
        }
      }
      EXPECT_EQ(join(core), size() - 1);
    }
    run(core, barrier());  // everybody takes part again
  });
}

TEST_P(JoinAndGroup, AJoinedRootAndRowsOwedToAJoinedRankAreErrors) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    float values[100] = {};
    if (core.options().rank != 0) {
      EXPECT_NE(failure_of(core, broadcast(values, 100, 0)).find("has joined"), std::string::npos);
      Request exchange{.kind = Kind::all_to_all, .input = view(values, static_cast<std::size_t>(size())), .output = {}};
      exchange.splits.assign(static_cast<std::size_t>(size()), 1);
      EXPECT_NE(failure_of(core, exchange).find("to rank 0, which has joined"), std::string::npos);
      EXPECT_NE(failure_of(core, {.kind = Kind::send,
                                  .input = view(values, 100),
                                  .output = {},
                                  .root = core.options().rank,
                                  .partner = 0,
                                  .receiver = 0})
                    .find("rank 0 has joined"),
                std::string::npos);
    }
    join(core);
    run(core, barrier());
  });
}

TEST_P(JoinAndGroup, GroupsWorkByThemselves) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    std::vector<int> mine;
    for (int peer = rank % 2; peer < size(); peer += 2) mine.push_back(peer);
    const auto group = core.make_group({mine.rbegin(), mine.rend()});
    EXPECT_EQ(group->ranks, mine) << "in ascending order, however they were named";
    float expected = 0;
    for (int peer : mine) expected += static_cast<float>(peer);
    for (std::size_t elements : {3, 5000}) {
      std::vector<float> values(elements, static_cast<float>(rank));
      Request request = all_reduce(values.data(), elements, "same name in both groups");
      request.group = group;
      run(core, request);
      EXPECT_EQ(values.back(), expected);
      request = broadcast(values.data(), elements, mine.back());
      values[0] = static_cast<float>(rank);
      request.group = group;
      run(core, request);
      EXPECT_EQ(values[0], static_cast<float>(mine.back()));
    }
    // A rank outside, and a root outside, are refused at the call.
    if (size() > 1) {
      const int outsider = rank % 2 == 0 ? 1 : 0;
      EXPECT_THROW(core.make_group({outsider}), Error);
      float value = 0;
      Request request = broadcast(&value, 1, outsider);
      request.group = group;
      EXPECT_THROW(core.submit(request, false), Error);
    }
    EXPECT_THROW(core.make_group({rank, rank}), Error);
    EXPECT_THROW(core.make_group({rank, size()}), Error);
    run(core, barrier());
  });
}

// The even ranks' barrier must not wait for the odd ranks, which only turn up later.
TEST_P(JoinAndGroup, OneGroupNeverWaitsForAnother) {
  if (size() < 3) return;
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    std::vector<int> mine;
    for (int peer = rank % 2; peer < size(); peer += 2) mine.push_back(peer);
    const auto group = core.make_group(mine);
    Request together = barrier();
    together.group = group;
    if (rank % 2 == 1) {
      // The odd ranks enter only after rank 0 tells them that the even ones are through.
      float told = 0;
      run(core, {.kind = Kind::receive,
                 .input = view(&told, 1),
                 .output = view(&told, 1),
                 .root = 0,
                 .partner = 0,
                 .receiver = rank});
      EXPECT_EQ(told, 1.0F);
    }
    for (int i = 0; i < 20; ++i) run(core, together);
    if (rank == 0) {
      float word = 1;
      for (int peer = 1; peer < size(); peer += 2) {
        run(core,
            {.kind = Kind::send, .input = view(&word, 1), .output = {}, .root = 0, .partner = peer, .receiver = peer});
      }
    }
  });
}

TEST_P(JoinAndGroup, ScalesApplyBeforeAndAfter) {
  run_world(over(), size(), [&](Core& core) {
    for (std::size_t elements : {2, 3000}) {
      std::vector<float> values(elements, 3.0F);
      Request request = all_reduce(values.data(), elements);
      request.prescale = 0.5;
      request.postscale = 4.0;
      run(core, request);
      EXPECT_EQ(values.back(), 1.5F * static_cast<float>(size()) * 4.0F);
    }
    if (size() == 1) return;
    // Scales are part of the agreement.
    float value = 1;
    Request request = all_reduce(&value, 1, "scaled");
    request.postscale = core.options().rank == 0 ? 2.0 : 3.0;
    EXPECT_NE(failure_of(core, request).find("postscale 2"), std::string::npos);
  });
}

TEST_P(JoinAndGroup, NanPropagatesThroughMinAndMax) {
  run_world(over(), size(), [&](Core& core) {
    for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (int culprit = 0; culprit < size(); ++culprit) {
        std::vector<float> values(200, 1.0F);
        if (core.options().rank == culprit) values[150] = std::numeric_limits<float>::quiet_NaN();
        run(core, all_reduce(values.data(), values.size(), {}, op));
        EXPECT_TRUE(std::isnan(values[150]));
        EXPECT_EQ(values[149], 1.0F);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, JoinAndGroup,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 5)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, JoinAndGroup, testing::ValuesIn(tcp_worlds({3}, {5})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

}  // namespace
}  // namespace lockstep::engine
