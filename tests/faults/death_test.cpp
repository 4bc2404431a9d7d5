// A peer that dies or is stopped: every other rank says so, by name, within the promised time.
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "../multi_process/processes.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_processes::Outcome;
using testing_processes::Processes;
using Clock = std::chrono::steady_clock;

// What a survivor reports: when it was told (the steady clock is the same in all processes), the code and the words.
struct Report {
  Clock::time_point when;
  ErrorCode code;
  std::string text;
};

Report report_of(const Outcome& outcome) {
  std::istringstream words(outcome.said);
  std::int64_t when = 0;
  int code = 0;
  words >> when >> code;
  std::string text;
  std::getline(words, text);
  return {Clock::time_point(std::chrono::nanoseconds(when)), static_cast<ErrorCode>(code), text};
}

// Runs all-reduces until one throws, and says when and what it threw.
std::string reduce_until_error(Engine& engine, std::size_t elements, std::chrono::microseconds pause) {
  auto* heap = static_cast<float*>(engine.allocate(elements * sizeof(float)));
  const TensorView tensor{.data = heap, .shape = {static_cast<std::int64_t>(elements)}, .name = "gradient"};
  for (std::size_t i = 0; i < elements; ++i) heap[i] = 0.0F;
  engine.all_reduce(tensor, tensor);
  Processes::say_ready();
  try {
    for (;;) {
      engine.all_reduce(tensor, tensor);
      if (pause > 0us) std::this_thread::sleep_for(pause);
    }
  } catch (const Error& error) {
    const auto now = Clock::now().time_since_epoch();
    return std::to_string(std::chrono::nanoseconds(now).count()) + " " +
           std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
}

void expect_lost(const Outcome& outcome, int victim, const char* how, Clock::time_point since, Clock::duration bound) {
  const Report report = report_of(outcome);
  EXPECT_EQ(report.code, ErrorCode::peer_lost) << outcome.said;
  EXPECT_NE(report.text.find("lost rank " + std::to_string(victim)), std::string::npos) << outcome.said;
  EXPECT_NE(report.text.find(how), std::string::npos) << outcome.said;
  EXPECT_LT(report.when - since, bound);
}

struct FaultCase {
  int size;
  int victim;
  std::size_t elements;
  std::chrono::microseconds pause;
};

class Death : public testing::TestWithParam<FaultCase> {};

TEST_P(Death, OfAKilledRankIsNamedByAllOthersWithinHalfASecond) {
  const FaultCase fault = GetParam();
  Processes ranks(fault.size, [&](Engine& engine) { return reduce_until_error(engine, fault.elements, fault.pause); });
  ranks.await_ready(fault.size);
  const auto killed = Clock::now();
  ::kill(ranks.pid(fault.victim), SIGKILL);
  for (int rank = 0; rank < fault.size; ++rank) {
    if (rank != fault.victim) expect_lost(ranks.wait(rank), fault.victim, "died", killed, 500ms);
  }
}

INSTANTIATE_TEST_SUITE_P(Kill, Death,
                         testing::Values(FaultCase{2, 0, 1 << 20, 0us}, FaultCase{2, 1, 1 << 20, 0us},
                                         FaultCase{3, 1, 64 << 20, 0us},  // in the middle of 256 MB
                                         FaultCase{4, 0, 1000, 0us}, FaultCase{4, 3, 10, 0us},
                                         FaultCase{3, 2, 1000, 20ms}),  // between operations
                         [](const auto& test) {
                           return "rank" + std::to_string(test.param.victim) + "of" + std::to_string(test.param.size) +
                                  "with" + std::to_string(test.param.elements);
                         });

TEST(Death, IsNoticedThoughAForkedChildHoldsEverythingOpen) {
  Processes ranks(2, [](Engine& engine) {
    if (engine.rank() == 1 && ::fork() == 0) {
      std::this_thread::sleep_for(3s);
      ::_exit(0);
    }
    return reduce_until_error(engine, 1 << 20, 0us);
  });
  ranks.await_ready(2);
  const auto killed = Clock::now();
  ::kill(ranks.pid(1), SIGKILL);
  expect_lost(ranks.wait(0), 1, "died", killed, 500ms);
}

TEST(Death, OfAStoppedRankIsNamedWithinFiveSeconds) {
  Processes ranks(3, [&](Engine& engine) { return reduce_until_error(engine, 1000, 1ms); });
  ranks.await_ready(3);
  const auto stopped = Clock::now();
  ::kill(ranks.pid(1), SIGSTOP);
  for (int rank : {0, 2}) expect_lost(ranks.wait(rank), 1, "stopped", stopped, 5s);
  // On waking it learns that the world went on without it.
  ::kill(ranks.pid(1), SIGCONT);
  EXPECT_NE(ranks.wait(1).said.find("lost rank 1"), std::string::npos);
}

TEST(Death, AOneSecondStopIsNoFailure) {
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
