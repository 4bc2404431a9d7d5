// The promises about dying and stopped ranks, for ranks that reach each other over TCP.
#include <gtest/gtest.h>

#include <memory>

#include "survivors.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing_faults;

const Activity kInATransfer{"InATransfer", 4 << 20, 0ms};  // of 16 MB

Options over_tcp() {
  Options options;
  options.transport = "tcp";
  return options;
}

struct TcpDeathCase {
  int victim;
  Activity activity;
  bool with_forked_child = false;
};

std::string name_of(const TcpDeathCase& fault) {
  return "Rank" + std::to_string(fault.victim) + fault.activity.name +
         (fault.with_forked_child ? "WithAForkedChild" : "");
}
void PrintTo(const TcpDeathCase& fault, std::ostream* out) { *out << name_of(fault); }

class TcpDeath : public testing::TestWithParam<TcpDeathCase> {};

TEST_P(TcpDeath, OfAKilledRankIsNamedByAllOthersWithinHalfASecond) {
  const TcpDeathCase fault = GetParam();
  Processes ranks(
      kRanks,
      [&](Engine& engine) {
        if (engine.rank() == fault.victim && fault.with_forked_child && ::fork() == 0) {
          for (;;) ::pause();  // holds whatever it has inherited
        }
        return reduce_until_error(engine, fault.activity);
      },
      over_tcp());
  ranks.await_ready(kRanks);
  const auto killed = Clock::now();
  ::kill(ranks.pid(fault.victim), SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != fault.victim) expect_lost(ranks.wait(rank), fault.victim, "died", killed, 500ms);
  }
}

INSTANTIATE_TEST_SUITE_P(Kill, TcpDeath,
                         testing::Values(TcpDeathCase{0, kInATransfer}, TcpDeathCase{1, kBetweenOperations},
                                         TcpDeathCase{2, kInATransfer}, TcpDeathCase{0, kBetweenOperations, true},
                                         TcpDeathCase{1, kInATransfer, true}),
                         [](const auto& test) { return name_of(test.param); });

// One world per victim, side by side: most of the time is spent in waiting until a stop counts as one.
TEST(TcpStop, OfAnyRankIsNamedByAllOthersWithinFiveSeconds) {
  std::vector<std::unique_ptr<Processes>> worlds;
  std::vector<Clock::time_point> stopped;
  for (int victim = 0; victim < kRanks; ++victim) {
    const Activity& activity = victim == 1 ? kInATransfer : kBetweenOperations;
    worlds.push_back(std::make_unique<Processes>(
        kRanks, [&](Engine& engine) { return reduce_until_error(engine, activity); }, over_tcp()));
    worlds.back()->await_ready(kRanks);
    stopped.push_back(Clock::now());
    ::kill(worlds.back()->pid(victim), SIGSTOP);
  }
  for (int victim = 0; victim < kRanks; ++victim) {
    Processes& ranks = *worlds[static_cast<std::size_t>(victim)];
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != victim)
        expect_lost(ranks.wait(rank), victim, "stopped", stopped[static_cast<std::size_t>(victim)], 5s);
    }
    // On waking it learns that the world went on without it.
    ::kill(ranks.pid(victim), SIGCONT);
    const Outcome woken = ranks.wait(victim);
    EXPECT_NE(woken.said.find("lost rank " + std::to_string(victim)), std::string::npos) << woken.said;
  }
}

TEST(TcpStop, OfOneSecondIsNoFailure) {
  Processes ranks(
      2,
      [&](Engine& engine) {
        Processes::say_ready();
        const auto end = Clock::now() + 2500ms;
        for (float go_on = 1; go_on > 0;) {
          go_on = Clock::now() < end ? 1.0F : 0.0F;
          const TensorView flag{.data = &go_on, .shape = {1}};
          engine.all_reduce(flag, flag, {.op = ReduceOp::min});
        }
        return std::string("fine");
      },
      over_tcp());
  ranks.await_ready(2);
  ::kill(ranks.pid(1), SIGSTOP);
  std::this_thread::sleep_for(1s);
  ::kill(ranks.pid(1), SIGCONT);
  EXPECT_EQ(ranks.wait(0).said, "fine");
  EXPECT_EQ(ranks.wait(1).said, "fine");
}

// A program may end without stopping its engine. What it has completed by then is complete for the others too.
TEST(TcpDeath, AfterTheLastOperationIsNobodysFailure) {
  for (int round = 0; round < 10; ++round) {
    Processes ranks(
        3,
        [](Engine& engine) -> std::string {
          std::vector<float> values(200'000, 1.0F);
          const TensorView tensor{.data = values.data(), .shape = {200'000}};
          for (int i = 0; i < 3; ++i) engine.all_reduce(tensor, tensor);
          engine.barrier();
          Processes::end_at_once("fine");
        },
        over_tcp());
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank).said, "fine");
  }
}

}  // namespace
}  // namespace lockstep
