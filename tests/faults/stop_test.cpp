// A rank that is stopped (SIGSTOP): the others name it within the promised time; a short stop is no failure.
#include <gtest/gtest.h>

#include <memory>

#include "survivors.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing_faults;

class Stop : public testing::TestWithParam<Activity> {};

// One world per victim, side by side: most of the time is spent in waiting until a stop counts as one.
TEST_P(Stop, OfAnyRankIsNamedByAllOthersWithinFiveSeconds) {
  const Activity activity = GetParam();
  std::vector<std::unique_ptr<Processes>> worlds;
  std::vector<SharedMemoryWatch> watches;
  std::vector<Clock::time_point> stopped;
  for (int victim = 0; victim < kRanks; ++victim) {
    worlds.push_back(
        std::make_unique<Processes>(kRanks, [&](Engine& engine) { return reduce_until_error(engine, activity); }));
    worlds.back()->await_ready(kRanks);
    watches.emplace_back(*worlds.back());
    stopped.push_back(Clock::now());
    ::kill(worlds.back()->pid(victim), SIGSTOP);
  }
  for (int victim = 0; victim < kRanks; ++victim) {
    Processes& ranks = *worlds[static_cast<std::size_t>(victim)];
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != victim) {
        expect_lost(ranks.wait(rank), victim, "stopped", stopped[static_cast<std::size_t>(victim)], 5s);
      }
    }
    // On waking it learns that the world went on without it.
    ::kill(ranks.pid(victim), SIGCONT);
    const Outcome woken = ranks.wait(victim);
    EXPECT_NE(woken.said.find("lost rank " + std::to_string(victim)), std::string::npos) << woken.said;
    watches[static_cast<std::size_t>(victim)].expect_nothing_left();
  }
}

INSTANTIATE_TEST_SUITE_P(Sigstop, Stop, testing::Values(kInALargeOperation, kBetweenOperations),
                         [](const auto& test) { return test.param.name; });

TEST(Stop, OfOneSecondIsNoFailure) {
  Processes ranks(2, [&](Engine& engine) {
    Processes::say_ready();
    const auto end = Clock::now() + 2500ms;
    for (float go_on = 1; go_on > 0;) {
      go_on = Clock::now() < end ? 1.0F : 0.0F;
      const TensorView flag{.data = &go_on, .shape = {1}};
      engine.all_reduce(flag, flag, {.op = ReduceOp::min});
    }
    return std::string("fine");
  });
  ranks.await_ready(2);
  ::kill(ranks.pid(1), SIGSTOP);
  std::this_thread::sleep_for(1s);
  ::kill(ranks.pid(1), SIGCONT);
  EXPECT_EQ(ranks.wait(0).said, "fine");
  EXPECT_EQ(ranks.wait(1).said, "fine");
}

}  // namespace
}  // namespace lockstep
