#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using namespace std::chrono_literals;

// Far above the promised second, for slow machines, and far below the limit of a stall.
constexpr auto kAtOnce = 20s;
// A healthy program that looks like a deadlock does so for this long: several times what it takes to report one.
constexpr auto kLate = 1200ms;

// The thread sanitizer has a thread of its own, which no census can vouch for. There the tests do: their other threads
// only wait for the ranks to end.
void trust_under_sanitizer(Core& core) {
  if (under_thread_sanitizer()) core.use_census([](std::span<const pid_t>) { return 0; });
}

Request pair(Kind kind, float& value, int self, int partner, int tag = 0) {
  const int sender = kind == Kind::send ? self : partner;
  Request request{.kind = kind, .input = view(&value, 1), .output = {}, .root = sender, .partner = partner};
  if (kind == Kind::receive) request.output = request.input;
  request.receiver = kind == Kind::send ? partner : self;
  request.tag = tag;
  return request;
}

std::string mismatch_of(Core& core, const Request& request) {
  try {
    run(core, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    return error.what();
  }
  return "no failure";
}

class Deadlock : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  Over over() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }

  // Every rank blocks in what `request` gives for it; all are told the same, and `expected` is part of it.
  void expect_report(const std::function<Request(Core&)>& request, const std::vector<std::string>& expected) {
    std::mutex mutex;
    std::vector<std::string> reports;
    const auto begin = std::chrono::steady_clock::now();
    run_world(over(), size(), [&](Core& core) {
      trust_under_sanitizer(core);
      const std::string report = mismatch_of(core, request(core));
      EXPECT_EQ(mismatch_of(core, barrier()), report) << "a later operation";
      std::lock_guard lock(mutex);
      reports.push_back(report);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kAtOnce);
    for (const std::string& report : reports) EXPECT_EQ(report, reports.front());
    EXPECT_EQ(reports.front().find("deadlock: "), 0U) << reports.front();
    for (const std::string& part : expected)
      EXPECT_NE(reports.front().find(part), std::string::npos) << "no '" << part << "' in: " << reports.front();
  }
};

TEST_P(Deadlock, OfNames) {
  float value = 1;
  expect_report([&](Core& core) { return all_reduce(&value, 1, core.options().rank == 0 ? "a" : "b"); },
                {"rank 0 waits in all-reduce 'a' for rank", " in all-reduce 'b' for rank 0"});
}

TEST_P(Deadlock, OfReceivers) {
  std::vector<float> values(static_cast<std::size_t>(size()));
  expect_report(
      [&](Core& core) {
        const int rank = core.options().rank;
        return pair(Kind::receive, values[static_cast<std::size_t>(rank)], rank, (rank + 1) % size());
      },
      {"rank 0 waits in receive", "for rank 1"});
}

// Both make the groups in the same order, and use them in another.
TEST_P(Deadlock, OfGroups) {
  expect_report(
      [&](Core& core) {
        Request request;
        if (core.options().rank > 1) return request;
        const auto first = core.make_group({0, 1});
        const auto second = core.make_group({0, 1});
        request.group = core.options().rank == 0 ? first : second;
        return request;
      },
      {"rank 0 waits in barrier", "rank 1 waits in barrier"});
}

TEST_P(Deadlock, OfAJoinAndABarrier) {
  expect_report(
      [&](Core& core) {
        Request request;
        const auto group = core.options().rank < 2 ? core.make_group({0, 1}) : nullptr;
        if (core.options().rank == 1) request = {.kind = Kind::join, .input = {}, .output = {}, .group = group};
        return request;
      },
      {"rank 1 waits in join", "in barrier number 0 (no name) for rank 1"});
}

// The short cut is offered, and nobody takes it.
TEST_P(Deadlock, OfAnOffer) {
  expect_report([&](Core& core) { return core.options().rank == 0 ? barrier() : barrier("named"); },
                {"rank 0 waits in barrier number 0 (no name)", "in barrier 'named' for rank 0"});
}

// What others have submitted and nobody waits for does not help.
TEST_P(Deadlock, WithOperationsInTheBackground) {
  std::vector<float> values(static_cast<std::size_t>(size()) * 2);
  expect_report(
      [&](Core& core) {
        const auto rank = static_cast<std::size_t>(core.options().rank);
        core.submit(all_reduce(&values[rank * 2], 1, "own " + std::to_string(rank)), /*background=*/true);
        return all_reduce(&values[rank * 2 + 1], 1, rank == 0 ? "a" : "b");
      },
      {"rank 0 waits in all-reduce 'a'"});
}

TEST_P(Deadlock, OfThoseThatAreLeft) {
  std::atomic<int> told{0};
  run_world(over(), size() + 1, [&](Core& core) {
    trust_under_sanitizer(core);
    const int rank = core.options().rank;
    run(core, barrier());
    if (rank == size()) return core.stop();
    float value = 0;
    if (mismatch_of(core, pair(Kind::receive, value, rank, (rank + 1) % size())).find("deadlock: ") == 0) ++told;
  });
  EXPECT_EQ(told, size());
}

// As Python waits, which must look for signals now and then.
TEST_P(Deadlock, OfWaitsInSlices) {
  std::atomic<int> told{0};
  run_world(over(), size(), [&](Core& core) {
    trust_under_sanitizer(core);
    const auto operation = core.submit(barrier(core.options().rank == 0 ? "a" : "b"), /*background=*/true);
    while (!core.wait(*operation, std::chrono::steady_clock::now() + 100ms, /*in_slices=*/true)) {
    }
    ASSERT_TRUE(operation->error);
    if (std::string(operation->error->what()).find("deadlock: ") == 0) ++told;
  });
  EXPECT_EQ(told, size());
}

TEST_P(Deadlock, OfSeveralThreadsOfARank) {
  std::atomic<int> told{0};
  run_world(over(), size(), [&](Core& core) {
    trust_under_sanitizer(core);
    const std::string side = core.options().rank == 0 ? "a" : "b";
    const auto block = [&](const std::string& name) {
      if (mismatch_of(core, barrier(name)).find("deadlock: ") == 0) ++told;
    };
    std::thread second([&] { block(side + " of the second thread"); });
    block(side + " of the first thread");
    second.join();
  });
  EXPECT_EQ(told, 2 * size());
}

// --- what looks like a deadlock and is none: nobody may be told anything

class NoDeadlock : public testing::TestWithParam<Over> {};

// Rank 0 waits for "a". Another thread of it, which has never used the engine, comes with what rank 1 wants first.
void run_late_thread(Core& core, const std::function<void()>& come_late) {
  if (core.options().rank == 0) {
    std::thread late([&] {
      come_late();
      run(core, barrier("b"));
    });
    run(core, barrier("a"));
    late.join();
  } else {
    run(core, barrier("b"));
    run(core, barrier("a"));
  }
}

TEST_P(NoDeadlock, WhileAThreadMayCome) {
  run_world(GetParam(), 2, [&](Core& core) { run_late_thread(core, [] { std::this_thread::sleep_for(kLate); }); });
}

TEST_P(NoDeadlock, WhileAThreadMayBeWoken) {
  run_world(GetParam(), 2, [&](Core& core) {
    std::mutex mutex;
    std::condition_variable changed;
    bool woken = false;
    std::thread waker([&] {
      std::this_thread::sleep_for(kLate);
      std::lock_guard lock(mutex);
      woken = true;
      changed.notify_all();
    });
    run_late_thread(core, [&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return woken; });
    });
    waker.join();
  });
}

TEST_P(NoDeadlock, WhileSomebodyHasALimit) {
  run_world(GetParam(), 2, [&](Core& core) {
    trust_under_sanitizer(core);
    float value = 1;
    if (core.options().rank == 0) {
      const auto operation = core.submit(all_reduce(&value, 1, "a"), /*background=*/true);
      EXPECT_FALSE(core.wait(*operation, std::chrono::steady_clock::now() + kLate));
      run(core, barrier("b"));
      EXPECT_TRUE(core.wait(*operation));
    } else {
      run(core, barrier("b"));
      run(core, all_reduce(&value, 1, "a"));
    }
  });
}

// It was interrupted, and has other plans now.
TEST_P(NoDeadlock, WhileAWaitInSlicesIsNotGoneOnWith) {
  std::atomic<bool> interrupted{false};
  run_world(GetParam(), 2, [&](Core& core) {
    if (core.options().rank == 0) {
      const auto operation = core.submit(barrier("a"), /*background=*/true);
      for (int i = 0; i < 4; ++i)
        EXPECT_FALSE(core.wait(*operation, std::chrono::steady_clock::now() + 100ms, /*in_slices=*/true));
      interrupted = true;
      std::this_thread::sleep_for(kLate);
      run(core, barrier("b"));
      EXPECT_TRUE(core.wait(*operation));
    } else {
      while (!interrupted) std::this_thread::yield();
      run(core, barrier("b"));
      run(core, barrier("a"));
    }
  });
}

TEST_P(NoDeadlock, WhileARankWorksAlone) {
  run_world(GetParam(), 2, [&](Core& core) {
    trust_under_sanitizer(core);
    if (core.options().rank == 0) std::this_thread::sleep_for(kLate);
    run(core, barrier());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, NoDeadlock, testing::Values(Over::memory, Over::shm, Over::tcp),
                         [](const auto& test) { return std::string(name_of(test.param)); });
INSTANTIATE_TEST_SUITE_P(Worlds, Deadlock,
                         testing::Combine(testing::Values(Over::memory, Over::shm, Over::tcp), testing::Values(2, 3)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lockstep::engine
