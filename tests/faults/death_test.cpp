// A rank that dies: every other rank says so, by name, within the promised time, and nothing of the world is left.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>

#include "survivors.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing_faults;

struct DeathCase {
  int victim;
  Activity activity;
  std::string burden = {};  // what the victim has beside its engine
};

std::string name_of(const DeathCase& fault) {
  return "Rank" + std::to_string(fault.victim) + fault.activity.name + fault.burden;
}
void PrintTo(const DeathCase& fault, std::ostream* out) { *out << name_of(fault); }

// 8 GB that the kernel must free before it closes the victim's files.
void fill_memory() {
  constexpr std::size_t kBytes = std::size_t{8} << 30;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("this test needs 8 GB of memory");
}

// A child that holds whatever it inherited. It outlives its parent, and ends with the test's process group.
void fork_child() {
  if (::fork() == 0) {
    for (;;) ::pause();
  }
}

std::vector<DeathCase> death_cases() {
  std::vector<DeathCase> cases;
  for (const int victim : {0, 1, 2}) {
    cases.push_back({victim, kInALargeOperation});
    cases.push_back({victim, kBetweenOperations});
    cases.push_back({victim, kBetweenOperations, "WithAForkedChild"});
    if (std::getenv("LOCKSTEP_TEST_FULL") != nullptr) {
      cases.push_back({victim, kInALargeOperation, "WithAForkedChild"});
      cases.push_back({victim, kInALargeOperation, "With8GB"});
      cases.push_back({victim, kBetweenOperations, "With8GB"});
    }
  }
  return cases;
}

class Death : public testing::TestWithParam<DeathCase> {};

TEST_P(Death, OfAKilledRankIsNamedByAllOthersWithinHalfASecond) {
  const DeathCase fault = GetParam();
  Processes ranks(kRanks, [&](Engine& engine) {
    if (engine.rank() == fault.victim && fault.burden == "With8GB") fill_memory();
    if (engine.rank() == fault.victim && fault.burden == "WithAForkedChild") fork_child();
    return reduce_until_error(engine, fault.activity);
  });
  ranks.await_ready(kRanks);
  const SharedMemoryWatch watch(ranks);
  const auto killed = Clock::now();
  ::kill(ranks.pid(fault.victim), SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != fault.victim) expect_lost(ranks.wait(rank), fault.victim, "died", killed, 500ms);
  }
  ranks.end_all();
  watch.expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Kill, Death, testing::ValuesIn(death_cases()),
                         [](const auto& test) { return name_of(test.param); });

// A program may end without stopping its engine. What it has completed by then is complete for the others too.
TEST(Death, AfterTheLastOperationIsNobodysFailure) {
  for (int round = 0; round < 30; ++round) {
    Processes ranks(4, [](Engine& engine) -> std::string {
      std::vector<float> values(200'000, 1.0F);
      const TensorView tensor{.data = values.data(), .shape = {200'000}};
      for (int i = 0; i < 3; ++i) engine.all_reduce(tensor, tensor);
      engine.barrier();
      Processes::end_at_once("fine");
    });
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.wait(rank).said, "fine");
  }
}

}  // namespace
}  // namespace lockstep
