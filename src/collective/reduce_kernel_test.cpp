// The vector paths against the same sums one number at a time.
#include "collective/reduce_kernel.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"

namespace lockstep::collective {
namespace {

std::vector<const std::byte*> bytes_of(const auto& leaves) {
  std::vector<const std::byte*> pointers;
  for (const auto& leaf : leaves) pointers.push_back(reinterpret_cast<const std::byte*>(leaf.data()));
  return pointers;
}

// Every number of type bf16 plus each of a few dozen others, zeros, infinities and NaNs among them.
TEST(ReduceKernel, RoundsEverySumOfTwoBf16AsOneNumberIsRounded) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<std::uint16_t> others = {0x0000, 0x8000, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0xFFFF};
  std::mt19937 random(1);
  while (others.size() < 40) others.push_back(static_cast<std::uint16_t>(random()));
  for (std::uint16_t other : others) {
    const std::vector<std::vector<std::uint16_t>> leaves = {all, std::vector<std::uint16_t>(all.size(), other)};
    std::vector<std::uint16_t> result(all.size());
    auto* output = reinterpret_cast<std::byte*>(result.data());
    const auto inputs = bytes_of(leaves);
    reduce({.dtype = DType::bf16, .leaves = inputs, .outputs = {&output, 1}, .elements = all.size()});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float sum = f32_from_bf16(all[i]) + f32_from_bf16(other);
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(f32_from_bf16(result[i]))) << all[i] << " + " << other;
      } else {
        ASSERT_EQ(result[i], bf16_from_f32(sum)) << all[i] << " + " << other;
      }
    }
  }
}

// One leaf and one output take paths of their own, as do equal numbers of both.
TEST(ReduceKernel, AddsAnyNumberOfLeavesIntoAnyNumberOfOutputs) {
  constexpr std::size_t kElements = 1003;
  std::mt19937 random(2);
  for (std::size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 17, 40}) {
    std::vector<std::vector<float>> leaves(count, std::vector<float>(kElements));
    for (auto& leaf : leaves) {
      for (float& value : leaf)
        value = std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 40));
    }
    std::vector<float> expected(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      auto sum = [&](auto&& self, std::size_t first, std::size_t size) -> float {
        if (size == 1) return leaves[first][i];
        const std::size_t left = left_leaves(size);
        return self(self, first, left) + self(self, first + left, size - left);
      };
      expected[i] = sum(sum, 0, count);
    }
    for (std::size_t outputs : {std::size_t{1}, std::size_t{2}, std::size_t{3}, count}) {
      std::vector<std::vector<float>> results(outputs, std::vector<float>(kElements));
      std::vector<std::byte*> targets;
      for (auto& result : results) targets.push_back(reinterpret_cast<std::byte*>(result.data()));
      const auto inputs = bytes_of(leaves);
      reduce({.leaves = inputs, .outputs = targets, .elements = kElements});
      for (const auto& result : results) ASSERT_EQ(result, expected) << count << " leaves, " << outputs << " outputs";
    }
  }
}

template <class T>
void check_many_leaves(DType dtype, ReduceOp op, std::size_t count) {
  constexpr std::size_t kElements = 2503;  // more than a tile, and no whole number of vectors
  std::mt19937 random(3);
  std::vector<std::vector<T>> leaves(count, std::vector<T>(kElements));
  for (auto& leaf : leaves) {
    for (T& value : leaf) value = static_cast<T>(random() % 100'000) / T{3};
  }
  std::vector<T> expected(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    expected[i] = *reduce_tree(
        0, count, [&](std::size_t leaf) { return std::optional(leaves[leaf][i]); }, [](T a, T b) { return a + b; });
    if (op == ReduceOp::average) expected[i] /= static_cast<T>(count);
  }
  std::vector<std::byte*> targets;
  for (auto& leaf : leaves) targets.push_back(reinterpret_cast<std::byte*>(leaf.data()));
  const auto inputs = bytes_of(leaves);
  reduce({.dtype = dtype, .op = op, .leaves = inputs, .outputs = targets, .elements = kElements, .divisor = count});
  for (const auto& leaf : leaves) ASSERT_EQ(leaf, expected) << name_of(dtype) << ", " << count << " leaves";
}

// In place: a tile is read from all of them before it is written to any.
TEST(ReduceKernel, AddsMoreLeavesThanThereAreRegisters) {
  for (std::size_t count : {9, 12, 16, 31, 64}) {
    check_many_leaves<float>(DType::f32, ReduceOp::sum, count);
    check_many_leaves<float>(DType::f32, ReduceOp::average, count);
    check_many_leaves<double>(DType::f64, ReduceOp::sum, count);
    check_many_leaves<double>(DType::f64, ReduceOp::average, count);
    check_many_leaves<std::int32_t>(DType::i32, ReduceOp::sum, count);
    check_many_leaves<std::int64_t>(DType::i64, ReduceOp::sum, count);
  }
}

}  // namespace
}  // namespace lockstep::collective
