// After a failure: the ranks that are left agree on who they are and go on in a new engine, without a launcher.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "../multi_process/processes.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_processes::Processes;

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += std::to_string(rank);
  return text;
}

// All-reduces until one fails because a rank was lost.
void reduce_until_lost(Engine& engine) {
  std::vector<float> values(300'000, 1.0F);
  const TensorView tensor{.data = values.data(), .shape = {300'000}};
  engine.all_reduce(tensor, tensor);
  Processes::say_ready();
  try {
    for (;;) engine.all_reduce(tensor, tensor);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
  }
}

// "rank of size: sum", where every rank gave its number plus one.
std::string reduce_once(Engine& engine) {
  constexpr std::size_t kElements = 300'000;
  std::vector<float> own(kElements, static_cast<float>(engine.rank() + 1));
  const TensorView tensor{.data = own.data(), .shape = {kElements}};
  engine.all_reduce(tensor, tensor);
  for (float value : own) {
    if (value != own.front()) return "different elements";
  }
  return std::to_string(engine.rank()) + " of " + std::to_string(engine.size()) + ": " +
         std::to_string(static_cast<int>(own.front()));
}

std::size_t mapped_segments() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  std::size_t count = 0;
  char line[4096];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    if (std::string(line).find("memfd:lockstep") != std::string::npos) ++count;
  }
  std::fclose(maps);
  return count;
}

class Survivors : public testing::TestWithParam<int> {};

TEST_P(Survivors, OfAKilledRankAgreeAndGoOn) {
  const int victim = GetParam();
  Processes ranks(4, [](Engine& engine) {
    engine.begin_step();
    engine.end_step();
    reduce_until_lost(engine);
    const Agreement agreement = engine.agree();
    const auto next = engine.continue_with_survivors();
    return text_of(agreement.failed) + " failed after " + std::to_string(agreement.steps) + " step, " +
           reduce_once(*next);
  });
  ranks.await_ready(4);
  ::kill(ranks.pid(victim), SIGKILL);
  for (int rank = 0, place = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank).said,
              std::to_string(victim) + " failed after 1 step, " + std::to_string(place++) + " of 3: 6");
  }
}

INSTANTIATE_TEST_SUITE_P(Kill, Survivors, testing::Values(0, 1, 3));

TEST(Survivors, GoOnTwiceInARowAndTheOldWorldIsGone) {
  Processes ranks(4, [](Engine& first) -> std::string {
    reduce_until_lost(first);
    auto second = first.continue_with_survivors();
    reduce_until_lost(*second);
    auto third = second->continue_with_survivors();
    const std::size_t before = mapped_segments();
    second.reset();
    const std::size_t after = mapped_segments();
    return reduce_once(*third) + (after < before ? "" : ", but the old world is still there");
  });
  ranks.await_ready(4);
  ::kill(ranks.pid(0), SIGKILL);
  ranks.await_ready(3);
  ::kill(ranks.pid(2), SIGKILL);
  EXPECT_EQ(ranks.wait(1).said, "0 of 2: 3");
  EXPECT_EQ(ranks.wait(3).said, "1 of 2: 3");
}

TEST(Survivors, OneAloneGoesOnAlone) {
  Processes ranks(2, [](Engine& engine) {
    reduce_until_lost(engine);
    return reduce_once(*engine.continue_with_survivors());
  });
  ranks.await_ready(2);
  ::kill(ranks.pid(0), SIGKILL);
  EXPECT_EQ(ranks.wait(1).said, "0 of 1: 1");
}

TEST(Survivors, AreNotDisturbedByOneThatWakesUp) {
  Processes ranks(3, [](Engine& engine) -> std::string {
    reduce_until_lost(engine);
    try {
      const auto next = engine.continue_with_survivors();
      Processes::say_ready();
      std::string said;
      for (int i = 0; i < 100; ++i) {
        said = reduce_once(*next);
        std::this_thread::sleep_for(10ms);
      }
      return said;
    } catch (const Error& error) {
      return error.what();
    }
  });
  ranks.await_ready(3);
  ::kill(ranks.pid(1), SIGSTOP);
  ranks.await_ready(2);
  ::kill(ranks.pid(1), SIGCONT);
  EXPECT_NE(ranks.wait(1).said.find("went on without rank 1"), std::string::npos);
  EXPECT_EQ(ranks.wait(0).said, "0 of 2: 3");
  EXPECT_EQ(ranks.wait(2).said, "1 of 2: 3");
}

}  // namespace
}  // namespace lockstep
