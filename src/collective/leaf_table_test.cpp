// Whoever owns which leaves, the bits are those of the tree over all of them.
#include "collective/leaf_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "collective/reduce_kernel.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

std::vector<float> tree_sum(const std::vector<std::vector<float>>& leaves) {
  std::vector<const std::byte*> inputs;
  for (const auto& leaf : leaves) inputs.push_back(reinterpret_cast<const std::byte*>(leaf.data()));
  std::vector<float> sum(leaves.front().size());
  auto* output = reinterpret_cast<std::byte*>(sum.data());
  reduce({.leaves = inputs, .outputs = {&output, 1}, .elements = sum.size()});
  return sum;
}

std::vector<std::vector<float>> random_leaves(std::size_t count, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::uniform_real_distribution<float> value(-1e6F, 1e6F);
  std::vector<std::vector<float>> leaves(count, std::vector<float>(elements));
  for (auto& leaf : leaves) {
    for (float& element : leaf) element = value(random) * std::exp2f(static_cast<float>(random() % 40) - 20.0F);
  }
  return leaves;
}

TensorView view(std::vector<float>& data, std::vector<std::int64_t> shape) {
  return {.data = data.data(), .dtype = DType::f32, .shape = std::move(shape)};
}

Call call_of(const std::vector<std::int64_t>& counts, std::size_t elements) {
  Call call;
  call.kind = Kind::all_reduce;
  call.elements = elements;
  for (std::int64_t count : counts) {
    Party party;
    party.rank = static_cast<int>(call.parties.size());
    party.first_leaf = call.total_leaves;
    party.leaf_count = count;
    call.total_leaves += count;
    call.parties.push_back(party);
  }
  return call;
}

// What the ranks together make of it: each its partial sums, then the tree over those.
std::vector<float> sum_as_owned(const Call& call, std::vector<std::vector<float>> leaves) {
  const std::size_t elements = call.elements;
  std::vector<std::vector<float>> given;
  for (const Party& party : call.parties) {
    const LeafRange range{party.first_leaf, party.leaf_count, call.total_leaves};
    const auto blocks = static_cast<std::int64_t>(leaf_blocks(range).size());
    std::vector<TensorView> own;
    for (std::int64_t i = 0; i < party.leaf_count; ++i) {
      own.push_back(
          view(leaves[static_cast<std::size_t>(party.first_leaf + i)], {static_cast<std::int64_t>(elements)}));
    }
    std::vector<float> partials(static_cast<std::size_t>(blocks) * elements);
    sum_leaves(range, own, view(partials, {blocks, static_cast<std::int64_t>(elements)}));
    given.push_back(std::move(partials));
  }
  const LeafTable table(call);
  std::vector<const std::byte*> inputs;
  for (const LeafTable::Entry& entry : table.entries()) {
    inputs.push_back(reinterpret_cast<const std::byte*>(given[entry.party].data()) + entry.offset);
  }
  std::vector<float> sum(elements);
  auto* output = reinterpret_cast<std::byte*>(sum.data());
  reduce({.leaves = inputs,
          .numbers = table.numbers(),
          .total = table.total(),
          .outputs = {&output, 1},
          .elements = elements});
  return sum;
}

void for_each_ownership(std::int64_t leaves, std::size_t ranks,
                        const std::function<void(const std::vector<std::int64_t>&)>& body,
                        std::vector<std::int64_t> counts = {}) {
  if (counts.size() + 1 == ranks) {
    counts.push_back(leaves);
    return body(counts);
  }
  for (std::int64_t mine = 0; mine <= leaves; ++mine) {
    auto more = counts;
    more.push_back(mine);
    for_each_ownership(leaves - mine, ranks, body, more);
  }
}

TEST(Leaves, EveryContiguousOwnershipGivesTheBitsOfTheWholeTree) {
  constexpr std::size_t kElements = 19;  // vectors and a remainder
  for (std::size_t n = 1; n <= 12; ++n) {
    const auto leaves = random_leaves(n, kElements);
    const auto expected = tree_sum(leaves);
    for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
      for_each_ownership(static_cast<std::int64_t>(n), ranks, [&](const std::vector<std::int64_t>& counts) {
        const Call call = call_of(counts, kElements);
        ASSERT_NO_THROW(check_leaf_ranges(call));
        ASSERT_EQ(sum_as_owned(call, leaves), expected) << n << " leaves, " << ranks << " ranks";
      });
    }
  }
}

TEST(Leaves, AnAlignedPowerOfTwoIsOneBlockAndARaggedRangeAFew) {
  EXPECT_EQ(leaf_blocks({4, 4, 12}).size(), 1U);
  EXPECT_EQ(leaf_blocks({0, 12, 12}).size(), 1U);
  EXPECT_EQ(leaf_blocks({4, 3, 7}).size(), 1U) << "the right subtree of seven leaves";
  EXPECT_EQ(leaf_blocks({1, 6, 8}).size(), 4U) << "1, 2-3, 4-5, 6";
  EXPECT_TRUE(leaf_blocks({5, 0, 8}).empty());
  EXPECT_THROW(leaf_blocks({5, 4, 8}), Error);
  EXPECT_THROW(leaf_blocks({-1, 2, 8}), Error);
  EXPECT_THROW(leaf_blocks({0, 0, 0}), Error);
}

TEST(Leaves, AlignedOwnershipKeepsTheFastPath) {
  EXPECT_TRUE(LeafTable(call_of({4, 4, 4, 4}, 1)).numbers().empty());
  EXPECT_TRUE(LeafTable(call_of({4, 0, 4}, 1)).numbers().empty());
  EXPECT_FALSE(LeafTable(call_of({3, 3}, 1)).numbers().empty());
}

TEST(Leaves, GapsAndOverlapsAreSaidWithTheirOwners) {
  Call call = call_of({2, 3, 1}, 1);
  call.parties[1].leaf_count = 2;
  try {
    check_leaf_ranges(call);
    FAIL() << "a gap was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_NE(std::string(error.what()).find("rank 0: 0 to 1; rank 1: 2 to 3; rank 2: 5 to 5"), std::string::npos)
        << error.what();
  }
  call.parties[1].leaf_count = 4;
  EXPECT_THROW(check_leaf_ranges(call), Error) << "an overlap";
  call = call_of({2, 3, 1}, 1);
  call.parties[1].present = false;
  EXPECT_NO_THROW(check_leaf_ranges(call)) << "the leaves of a joined rank are skipped";
}

TEST(Leaves, SumsThatDoNotFitAreRefused) {
  std::vector<float> a(4), b(4), partials(4);
  const std::vector<TensorView> leaves = {view(a, {4}), view(b, {4})};
  EXPECT_THROW(sum_leaves({0, 3, 4}, leaves, view(partials, {1, 4})), Error) << "three leaves, two tensors";
  EXPECT_THROW(sum_leaves({0, 2, 4}, leaves, view(partials, {4})), Error) << "no dimension for blocks";
  EXPECT_THROW(sum_leaves({0, 2, 4}, leaves, view(partials, {1, 4}), ReduceOp::adasum), Error);
  EXPECT_NO_THROW(sum_leaves({0, 2, 4}, leaves, view(partials, {1, 4})));
}

}  // namespace
}  // namespace lockstep::collective
