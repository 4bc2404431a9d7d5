// Survivors agree over a transport that has no shared memory to do it in.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "engine/survivors.hpp"
#include "transport/tcp/tcp_world_test.hpp"

namespace lockstep::engine {
namespace {

TEST(TcpSurvivors, AgreeOnWhoIsLeftWhoeverDied) {
  for (const std::size_t dead : {0u, 1u, 3u}) {
    auto ranks = transport::make_tcp_world(4);
    ranks[dead].reset();
    std::vector<RoundResult> results(4);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      if (rank == dead) continue;
      threads.emplace_back([&, rank] {
        results[rank] =
            hold_round(*ranks[rank], {.round = 1, .vote = true, .steps = 10 + rank}, std::chrono::seconds(30));
      });
    }
    for (auto& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < 4; ++rank) {
      if (rank == dead) continue;
      EXPECT_EQ(results[rank].agreement.failed, std::vector<int>{static_cast<int>(dead)}) << rank;
      EXPECT_EQ(results[rank].agreement.survivors.size(), 3u);
      EXPECT_EQ(results[rank].agreement.steps, dead == 0 ? 11u : 10u);
      EXPECT_TRUE(results[rank].unanimous);
    }
  }
}

}  // namespace
}  // namespace lockstep::engine
