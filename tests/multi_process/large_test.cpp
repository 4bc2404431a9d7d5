// Tensors of more than 4 GiB between two processes: whatever counts bytes or elements in 32 bits shows here. They need
// 13 GB of memory, so they run with LOCKSTEP_TEST_FULL=1 only (`make soak SUITE=large`).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "processes.hpp"

namespace lockstep {
namespace {

using testing_processes::Processes;

constexpr std::size_t kBytes = (std::size_t{4} << 30) + (std::size_t{1} << 20) + 8;
constexpr std::size_t kWords = kBytes / sizeof(std::uint64_t);

// Eight elements of type u8, small enough that the sums of two ranks need no carry.
std::uint64_t word_of(std::size_t index, int rank) {
  const std::uint64_t mixed = index * 0x9E37'79B9'7F4A'7C15ULL;
  return (mixed & 0x3F3F'3F3F'3F3F'3F3FULL) + static_cast<std::uint64_t>(rank) * 0x0101'0101'0101'0101ULL;
}

float float_of(std::size_t index, int rank) {
  return static_cast<float>((index >> 3) % 65'521) + static_cast<float>(rank);
}

// More than 4 GiB in the heap, or of this process's own.
class Large {
 public:
  Large(Engine& engine, bool in_heap, std::size_t bytes = kBytes) : engine_(engine), bytes_(bytes) {
    if (in_heap) {
      block_ = engine.allocate(bytes);
      if (block_ == nullptr) throw std::runtime_error("no room in the heap");
    } else {
      own_ = std::make_unique_for_overwrite<std::uint64_t[]>(bytes / sizeof(std::uint64_t) + 1);
    }
  }
  ~Large() {
    if (block_ != nullptr) engine_.deallocate(block_);
  }
  Large(const Large&) = delete;
  Large& operator=(const Large&) = delete;

  std::uint64_t* words() { return block_ != nullptr ? static_cast<std::uint64_t*>(block_) : own_.get(); }
  float* floats() { return reinterpret_cast<float*>(words()); }
  TensorView view(DType dtype = DType::u8) {
    return {.data = words(), .dtype = dtype, .shape = {static_cast<std::int64_t>(bytes_ / size_of(dtype))}};
  }
  void fill(int rank) {
    for (std::size_t i = 0; i < bytes_ / sizeof(std::uint64_t); ++i) words()[i] = word_of(i, rank);
  }

 private:
  Engine& engine_;
  std::size_t bytes_;
  void* block_ = nullptr;
  std::unique_ptr<std::uint64_t[]> own_;
};

// Which of the first `count` is the first that is wrong.
template <class Actual, class Expected>
std::string compare(std::size_t count, const Actual& actual, const Expected& expected) {
  for (std::size_t i = 0; i < count; ++i) {
    if (actual(i) != expected(i)) return "wrong from element " + std::to_string(i) + " on";
  }
  return "right";
}

std::string sum_of_bytes(Engine& engine, bool in_heap, bool async) {
  Large tensor(engine, in_heap);
  tensor.fill(engine.rank());
  if (async) {
    engine.all_reduce_async(tensor.view(), tensor.view()).wait();
  } else {
    engine.all_reduce(tensor.view(), tensor.view());
  }
  return compare(
      kWords, [&](std::size_t i) { return tensor.words()[i]; },
      [](std::size_t i) { return word_of(i, 0) + word_of(i, 1); });
}

std::string sum_of_floats(Engine& engine, bool in_heap) {
  Large tensor(engine, in_heap);
  const std::size_t count = kBytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) tensor.floats()[i] = float_of(i, engine.rank());
  engine.all_reduce(tensor.view(DType::f32), tensor.view(DType::f32));
  return compare(
      count, [&](std::size_t i) { return tensor.floats()[i]; },
      [](std::size_t i) { return float_of(i, 0) + float_of(i, 1); });
}

std::string broadcast(Engine& engine, bool in_heap) {
  Large tensor(engine, in_heap);
  tensor.fill(engine.rank());
  engine.broadcast(tensor.view(), 1);
  return compare(
      kWords, [&](std::size_t i) { return tensor.words()[i]; }, [](std::size_t i) { return word_of(i, 1); });
}

// Each gives half of it, and the engine makes the result.
std::string gather(Engine& engine, bool in_heap) {
  const std::size_t part = kBytes / 2 / sizeof(std::uint64_t);
  Large tensor(engine, in_heap, part * sizeof(std::uint64_t));
  tensor.fill(engine.rank());
  const Result all = engine.all_gather(tensor.view());
  if (all.tensor.elements() != static_cast<std::int64_t>(2 * part * sizeof(std::uint64_t))) return "wrong shape";
  const auto* words = static_cast<const std::uint64_t*>(all.tensor.data);
  return compare(
      2 * part, [&](std::size_t i) { return words[i]; },
      [&](std::size_t i) { return i < part ? word_of(i, 0) : word_of(i - part, 1); });
}

struct LargeCase {
  const char* name;
  std::string (*run)(Engine&);
};

std::vector<LargeCase> large_cases() {
  if (std::getenv("LOCKSTEP_TEST_FULL") == nullptr) return {};
  return {
      {"SumOfBytesInTheHeap", [](Engine& engine) { return sum_of_bytes(engine, true, false); }},
      {"SumOfBytesInOwnMemory", [](Engine& engine) { return sum_of_bytes(engine, false, false); }},
      {"SumOfBytesInOwnMemoryAsync", [](Engine& engine) { return sum_of_bytes(engine, false, true); }},
      {"SumOfFloatsInTheHeap", [](Engine& engine) { return sum_of_floats(engine, true); }},
      {"SumOfFloatsInOwnMemory", [](Engine& engine) { return sum_of_floats(engine, false); }},
      {"BroadcastInTheHeap", [](Engine& engine) { return broadcast(engine, true); }},
      {"BroadcastInOwnMemory", [](Engine& engine) { return broadcast(engine, false); }},
      {"AllGatherFromTheHeap", [](Engine& engine) { return gather(engine, true); }},
      {"AllGatherFromOwnMemory", [](Engine& engine) { return gather(engine, false); }},
  };
}

class OverFourGiB : public testing::TestWithParam<LargeCase> {};

TEST_P(OverFourGiB, EveryElementIsRight) {
  Processes ranks(2, [&](Engine& engine) {
    // The first of them finds out whether ranks reach each other's memory; before, all is copied.
    std::vector<float> small(1 << 20);
    const TensorView view{.data = small.data(), .shape = {1 << 20}};
    engine.all_reduce(view, view);
    return GetParam().run(engine);
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank).said, "right") << "rank " << rank;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OverFourGiB);  // there are cases in the long form only
INSTANTIATE_TEST_SUITE_P(Large, OverFourGiB, testing::ValuesIn(large_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lockstep
