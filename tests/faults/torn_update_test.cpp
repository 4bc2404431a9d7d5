// Ranks are killed at random moments of updates of shared weights. The survivors must hold exactly what was before the
// update or what is after it: their hash is that of an undisturbed run.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../multi_process/processes.hpp"
#include "optim/every_option_test.hpp"
#include "weights/store.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_processes::Processes;

constexpr std::size_t kWorld = 4;
constexpr std::size_t kMany = 200'000;
const std::vector<SharedTensor> kShared = {{.name = "embedding", .elements = kMany},
                                           {.name = "bias", .elements = 77},
                                           {.name = "layer.weight", .elements = kMany / 2}};
const std::vector<OptimizerOptions> kRule = {{.kind = OptimizerKind::adamw, .weight_decay = 0.01}};

// The same in every update; the weights move on all the same.
void put_gradient(std::size_t rank, std::size_t tensor, void* to) {
  const auto values = numbers<float>(kShared[tensor].elements, rank * 10 + tensor + 1);
  std::memcpy(to, values.data(), values.size() * sizeof(float));
}

// Hashes of an undisturbed run with one copy, by number of updates.
class Undisturbed {
 public:
  Undisturbed() : layout_(kShared, kRule, kWorld), memory_(layout_.bytes()) {
    weights::Store::initialise(layout_, memory_.data());
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      ranks_.push_back(std::make_unique<weights::Store>(layout_, memory_.data(), rank, 1));
      for (std::size_t i = 0; i < kShared.size(); ++i) put_gradient(rank, i, ranks_.back()->gradient(i));
    }
    hashes_.push_back(ranks_[0]->hash());
  }

  std::uint64_t hash_after(std::size_t updates) {
    while (hashes_.size() <= updates) {
      for (auto& rank : ranks_) rank->submit({.optimizers = kRule});
      for (auto& rank : ranks_) EXPECT_TRUE(rank->agreed());
      for (auto& rank : ranks_) rank->apply();
      for (auto& rank : ranks_) rank->complete();
      hashes_.push_back(ranks_[0]->hash());
    }
    return hashes_[updates];
  }

 private:
  weights::Layout layout_;
  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<weights::Store>> ranks_;
  std::vector<std::uint64_t> hashes_;
};

// Updates until a rank is lost, recovers, and tells: updates seen before, updates after, hash.
std::string update_until_lost(Engine& engine) {
  SharedWeights shared(engine, kShared, kRule);
  for (std::size_t i = 0; i < kShared.size(); ++i) {
    put_gradient(static_cast<std::size_t>(engine.rank()), i, shared.gradient(i));
  }
  engine.barrier();
  Processes::say_ready();
  std::vector<std::unique_ptr<Engine>> later;
  auto current = [&]() -> Engine& { return later.empty() ? engine : *later.back(); };
  try {
    for (;;) shared.update({.optimizers = kRule});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
  }
  const std::uint64_t before = shared.updates();
  for (;;) {
    later.push_back(current().continue_with_survivors());
    try {
      shared.recover(current());
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_lost) throw;
    }
  }
  std::ostringstream said;
  said << before << ' ' << shared.updates() << ' ' << shared.hash();
  Processes::end_at_once(said.str());
}

// The ranks that are started meanwhile inherit where they are.
class OnNodes {
 public:
  explicit OnNodes(const std::string& nodes) { ::setenv("LOCKSTEP_MEMORY_NODE", nodes.c_str(), 1); }
  ~OnNodes() { ::unsetenv("LOCKSTEP_MEMORY_NODE"); }
};

int kills_wanted() {
  const char* given = std::getenv("LOCKSTEP_TEST_KILLS");
  return given == nullptr ? 20 : std::atoi(given);
}

// `nodes`: the memory node of each rank, "0,0,1,1"; empty: there is one copy of the weights.
void kill_at_random_moments(const std::string& nodes) {
  const OnNodes on_nodes(nodes);
  Undisturbed reference;
  std::mt19937 random(20'261'118);
  std::map<std::string, int> outcomes;
  int kills = 0;
  for (int round = 0; kills < kills_wanted(); ++round) {
    Processes ranks(static_cast<int>(kWorld), update_until_lost);
    ranks.await_ready(static_cast<int>(kWorld));
    const bool twice = round % 3 == 2;  // the second one while the others recover, or still update
    std::vector<int> victims = {static_cast<int>(random() % kWorld)};
    if (twice)
      victims.push_back((victims[0] + 1 + static_cast<int>(random() % (kWorld - 1))) % static_cast<int>(kWorld));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    for (std::size_t i = 0; i < victims.size(); ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % (round % 2 == 0 ? 2'000 : 60'000)));
      ::kill(ranks.pid(victims[i]), SIGKILL);
      ++kills;
    }
    for (int rank = 0; rank < static_cast<int>(kWorld); ++rank) {
      if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
      const auto outcome = ranks.wait(rank);
      std::istringstream said(outcome.said);
      std::uint64_t before = 0, after = 0, hash = 0;
      ASSERT_TRUE(said >> before >> after >> hash) << outcome.said;
      EXPECT_TRUE(after == before || after == before + 1) << outcome.said;
      EXPECT_EQ(hash, reference.hash_after(after)) << "round " << round << ", rank " << rank;
      ++outcomes[after == before ? "as before" : "one further"];
    }
    if (testing::Test::HasFailure()) break;
  }
  std::printf("figure: %d kills; survivors that found the update done or not begun: %d, completed it: %d\n", kills,
              outcomes["as before"], outcomes["one further"]);
}

TEST(TornUpdate, IsWholeAfterKillsAtRandomMoments) { kill_at_random_moments(""); }

// At times all ranks of a copy die.
TEST(TornUpdate, IsWholeInTwoCopiesAfterKillsAtRandomMoments) { kill_at_random_moments("0,0,1,1"); }

// It could wake up and write: the others end it before they touch what it was working on.
TEST(TornUpdate, EndsARankThatWasStoppedInIt) {
  Undisturbed reference;
  Processes ranks(static_cast<int>(kWorld), update_until_lost);
  ranks.await_ready(static_cast<int>(kWorld));
  std::this_thread::sleep_for(5ms);
  ::kill(ranks.pid(2), SIGSTOP);
  EXPECT_TRUE(ranks.wait(2).killed_by(SIGKILL));
  for (int rank : {0, 1, 3}) {
    std::istringstream said(ranks.wait(rank).said);
    std::uint64_t before = 0, after = 0, hash = 0;
    ASSERT_TRUE(said >> before >> after >> hash);
    EXPECT_EQ(hash, reference.hash_after(after));
  }
}

// A write into what users see is a fault, and the process says whose it was.
TEST(StrayWrite, NamesTheTensor) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    Engine alone{Options()};
    SharedWeights shared(alone, kShared, kRule);
    // The compiler must not know that it is read-only, either.
    static_cast<volatile float*>(const_cast<void*>(shared.weights(2)))[kMany / 2 - 1] = 1.0F;
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string words(4096, '\0');
  std::size_t filled = 0;
  for (ssize_t got = 0; (got = ::read(ends[0], words.data() + filled, words.size() - filled)) > 0;)
    filled += static_cast<std::size_t>(got);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  EXPECT_NE(words.find("writes into 'layer.weight'"), std::string::npos) << words;
}

}  // namespace
}  // namespace lockstep
