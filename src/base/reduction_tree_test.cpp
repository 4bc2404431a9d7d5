#include "base/reduction_tree.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace lockstep {
namespace {

std::string shape(std::size_t first, std::size_t n) {
  return *reduce_tree(
      first, n, [](std::size_t i) { return std::optional<std::string>(std::to_string(i)); },
      [](const std::string& a, const std::string& b) { return "(" + a + b + ")"; });
}

float sum(const std::vector<std::optional<float>>& leaves, std::size_t first, std::size_t n) {
  return reduce_tree(
             first, n, [&](std::size_t i) { return leaves[i]; }, [](float a, float b) { return a + b; })
      .value_or(0.0F);
}

TEST(ReductionTree, HasTheDocumentedShapeForOneToNineLeaves) {
  const char* expected[] = {"0",
                            "(01)",
                            "((01)2)",
                            "((01)(23))",
                            "(((01)(23))4)",
                            "(((01)(23))(45))",
                            "(((01)(23))((45)6))",
                            "(((01)(23))((45)(67)))",
                            "((((01)(23))((45)(67)))8)"};
  for (std::size_t n = 1; n <= 9; ++n) EXPECT_EQ(shape(0, n), expected[n - 1]);
}

TEST(ReductionTree, EveryAlignedBlockIsASubtree) {
  for (std::size_t n = 1; n <= 64; ++n) {
    const std::string whole = shape(0, n);
    for (std::size_t block = 1; block <= n; block *= 2) {
      for (std::size_t first = 0; first + block <= n; first += block) {
        EXPECT_NE(whole.find(shape(first, block)), std::string::npos) << n << " leaves, block at " << first;
      }
    }
  }
}

// The property behind "same bits on any number of workers": whoever owns which aligned blocks, joining their partial
// sums gives the bits of the whole tree.
TEST(ReductionTree, PartialSumsOfAlignedBlocksGiveTheSameBits) {
  std::mt19937 random(20);
  std::uniform_real_distribution<float> value(-1e6F, 1e6F);
  for (std::size_t n = 1; n <= 9; ++n) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::optional<float>> leaves(n);
      for (auto& leaf : leaves) leaf = value(random) * std::exp2f(static_cast<float>(random() % 40) - 20.0F);
      const float whole = sum(leaves, 0, n);
      for (std::size_t block = 1; block <= n; block *= 2) {
        // Leaves of each full block are replaced by their partial sum, in the block's first place.
        auto reduced = leaves;
        for (std::size_t first = 0; first + block <= n; first += block) {
          reduced[first] = sum(leaves, first, block);
          for (std::size_t i = 1; i < block; ++i) reduced[first + i] = std::nullopt;
        }
        const float joined = sum(reduced, 0, n);
        EXPECT_EQ(std::memcmp(&whole, &joined, sizeof whole), 0) << n << " leaves in blocks of " << block;
      }
    }
  }
}

TEST(ReductionTree, AbsentLeavesAreSkippedNotAddedAsZero) {
  std::vector<std::optional<float>> leaves = {std::nullopt, -0.0F, std::nullopt};
  EXPECT_TRUE(std::signbit(sum(leaves, 0, 3)));
  leaves = {std::nullopt, std::nullopt, std::nullopt};
  EXPECT_FALSE(reduce_tree(
      0, 3, [&](std::size_t i) { return leaves[i]; }, [](float a, float b) { return a + b; }));
}

}  // namespace
}  // namespace lockstep
