// A rank that is killed while tensors travel in buckets: the others are told, by name, within the promised time.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "../multi_process/processes.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_processes::Processes;
using Clock = std::chrono::steady_clock;

// Steps of forty tensors, half of them in the heap, until one throws. Says what it threw.
std::string step_until_error(Engine& engine) {
  constexpr std::size_t kElements = 20'000;
  std::vector<std::vector<float>> own(20, std::vector<float>(kElements));
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < 40; ++i) {
    void* data = i < own.size() ? own[i].data() : engine.allocate(kElements * sizeof(float));
    tensors.push_back({.data = data, .shape = {kElements}, .name = "tensor" + std::to_string(i)});
  }
  try {
    for (int step = 0;; ++step) {
      engine.begin_step();
      for (const TensorView& tensor : tensors) engine.all_reduce_async(tensor, tensor);
      engine.end_step();
      if (step == 10) Processes::say_ready();
    }
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PlannedDeath, OfAKilledRankIsNamedByAllOthersWithinHalfASecond) {
  for (int victim : {0, 1, 2}) {
    Processes ranks(3, step_until_error);
    ranks.await_ready(3);
    const auto killed = Clock::now();
    ::kill(ranks.pid(victim), SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string said = ranks.wait(rank).said;
      EXPECT_NE(said.find("lost rank " + std::to_string(victim)), std::string::npos) << said;
      EXPECT_LT(Clock::now() - killed, 500ms);
    }
  }
}

}  // namespace
}  // namespace lockstep
