// The public interface between real processes: same results, many engines, forked children.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "processes.hpp"

namespace lockstep {
namespace {

using testing_processes::Outcome;
using testing_processes::Processes;

TensorView view(std::vector<float>& values, const std::string& name = {}) {
  return {
      .data = values.data(), .dtype = DType::f32, .shape = {static_cast<std::int64_t>(values.size())}, .name = name};
}

std::string hex_of(const std::vector<float>& values) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return std::to_string(hash);
}

TEST(EngineProcesses, AllRanksGetTheSameBits) {
  for (int size : {2, 3, 5}) {
    Processes ranks(size, [](Engine& engine) {
      std::string hashes;
      for (std::size_t elements : {1, 20, 1000, 300'000}) {
        std::vector<float> values(elements);
        for (std::size_t i = 0; i < elements; ++i) {
          values[i] = 1.0F / static_cast<float>(1 + i + static_cast<std::size_t>(engine.rank()) * 7919);
        }
        engine.all_reduce(view(values), view(values));
        engine.broadcast(view(values), engine.size() - 1);
        hashes += hex_of(values) + " ";
      }
      engine.barrier();
      return hashes;
    });
    const Outcome first = ranks.wait(0);
    EXPECT_TRUE(first.exited_with(0)) << first.said;
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(ranks.wait(rank).said, first.said);
  }
}

TEST(EngineProcesses, ADeadlockIsToldToAll) {
  Processes ranks(2, [](Engine& engine) -> std::string {
    engine.barrier(engine.rank() == 0 ? "a" : "b");
    return "no deadlock";
  });
  const Outcome first = ranks.wait(0);
  EXPECT_TRUE(first.exited_with(1));
  EXPECT_NE(
      first.said.find("deadlock: rank 0 waits in barrier 'a' for rank 1; rank 1 waits in barrier 'b' for rank 0."),
      std::string::npos)
      << first.said;
  EXPECT_EQ(ranks.wait(1).said, first.said);
}

TEST(EngineProcesses, EnginesCanBeStoppedAndStartedAgain) {
  Processes ranks(2, [](Engine& first) {
    first.barrier();
    Options options = Options::from_environment();
    options.size = options.local_size = 2;
    options.rank = options.local_rank = first.rank();
    options.job = "again";
    options.secret = std::string(32, 'a' + static_cast<char>(::getppid() % 26));
    options.heap_bytes = 1 << 20;
    for (unsigned i = 0; i < 100; ++i) {
      options.epoch = i;
      Engine engine(options);
      std::vector<float> values(1000, 1.0F);
      engine.all_reduce(view(values), view(values));
      if (values[999] != 2.0F) throw std::runtime_error("wrong sum");
    }
    // Descriptors that an engine left open would show up here.
    const int next = ::dup(0);
    return "next descriptor " + std::to_string(next < 10 ? 0 : next);
  });
  for (int rank = 0; rank < 2; ++rank) {
    const Outcome outcome = ranks.wait(rank);
    EXPECT_TRUE(outcome.exited_with(0)) << outcome.said;
    EXPECT_EQ(outcome.said, "next descriptor 0");
  }
}

TEST(EngineProcesses, TensorsInTheHeapAreReducedWithoutACopy) {
  Processes ranks(2, [](Engine& engine) {
    constexpr std::int64_t kElements = 1 << 20;
    auto* values = static_cast<float*>(engine.allocate(kElements * sizeof(float)));
    for (std::int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(engine.rank() + 1);
    const TensorView tensor{.data = values, .shape = {kElements}};
    engine.all_reduce(tensor, tensor, {.op = ReduceOp::average});
    const bool right = values[0] == 1.5F && values[kElements - 1] == 1.5F;
    engine.deallocate(values);
    return std::string(right ? "right" : "wrong");
  });
  EXPECT_EQ(ranks.wait(0).said, "right");
  EXPECT_EQ(ranks.wait(1).said, "right");
}

// Large tensors outside the heap are read and written in place by the peers, after a first one that goes through it.
TEST(EngineProcesses, PrivateMemoryGivesTheSameBitsAsTheHeap) {
  Processes ranks(3, [](Engine& engine) {
    constexpr std::size_t kElements = 300'007;
    std::vector<float> original(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      original[i] = 1.0F / static_cast<float>(1 + i + static_cast<std::size_t>(engine.rank()) * 7919);
    }
    auto* heap = static_cast<float*>(engine.allocate(kElements * sizeof(float)));
    std::copy(original.begin(), original.end(), heap);
    const TensorView shared{.data = heap, .shape = {kElements}};
    engine.all_reduce(shared, shared);
    for (int round = 0; round < 5; ++round) {
      std::vector<float> in_place = original, output(kElements);
      engine.all_reduce(view(in_place), view(in_place));
      engine.all_reduce(view(original), view(output));
      if (std::memcmp(in_place.data(), heap, kElements * sizeof(float)) != 0) return std::string("in place differs");
      if (std::memcmp(output.data(), heap, kElements * sizeof(float)) != 0) return std::string("out of place differs");
      const Result part = engine.reduce_scatter(view(original));
      const std::size_t base = kElements / 3, extra = kElements % 3, rank = static_cast<std::size_t>(engine.rank());
      const std::size_t first = rank * base + std::min(rank, extra);
      if (std::memcmp(part.tensor.data, heap + first, part.tensor.bytes()) != 0)
        return std::string("reduce-scatter differs");
      const Result all = engine.all_gather(view(in_place));
      for (std::size_t i = 0; i < 3; ++i) {
        if (std::memcmp(static_cast<float*>(all.tensor.data) + i * kElements, heap, kElements * sizeof(float)) != 0) {
          return std::string("all-gather differs");
        }
      }
      engine.broadcast(view(output), round % 3);
    }
    engine.deallocate(heap);
    return std::string("same");
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank).said, "same");
}

TEST(EngineProcesses, AForkedChildIsRefusedAndHarmless) {
  Processes ranks(2, [](Engine& engine) {
    engine.barrier();
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        engine.barrier();
      } catch (const Error& error) {
        ::_exit(std::string(error.what()).find("parent process") != std::string::npos ? 7 : 8);
      }
      ::_exit(9);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    engine.barrier();
    return std::to_string(WEXITSTATUS(status));
  });
  EXPECT_EQ(ranks.wait(0).said, "7");
  EXPECT_EQ(ranks.wait(1).said, "7");
}

TEST(EngineProcesses, AMissingRankIsNamedOnAllThatArrived) {
  Options options;
  options.start_timeout = std::chrono::milliseconds(500);
  options.job = "lonely";
  options.secret = std::string(32, 'l');
  options.size = options.local_size = 2;
  for (int rank : {0, 1}) {
    options.rank = options.local_rank = rank;
    try {
      Engine engine(options);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_NE(std::string(error.what()).find(rank == 0 ? "missing: 1" : "rank 0 did not arrive"), std::string::npos)
          << error.what();
    }
  }
}

TEST(EngineProcesses, AnotherSecretFindsNobody) {
  Options options;
  options.start_timeout = std::chrono::milliseconds(400);
  Processes ranks(2, [&](Engine& engine) {
    engine.barrier();
    Options other = options;
    other.job = "secrets";
    other.size = other.local_size = 2;
    other.rank = other.local_rank = engine.rank();
    other.secret = std::string(32, engine.rank() == 0 ? 'x' : 'y');
    other.epoch = 1;
    try {
      Engine never(other);
    } catch (const Error& error) {
      return std::to_string(static_cast<int>(error.code()));
    }
    return std::string("met");
  });
  EXPECT_EQ(ranks.wait(0).said, "6");
  EXPECT_EQ(ranks.wait(1).said, "6");
}

}  // namespace
}  // namespace lockstep
