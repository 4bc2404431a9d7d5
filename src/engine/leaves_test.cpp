// Reductions over given leaves, through the whole engine: any ownership, every kind of reduction, both transports.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/half.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/routes.hpp"
#include "engine/request.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

constexpr std::int64_t kLeaves = 7;

// 16-bit numbers and f32: both kinds of leaves that a training run has.
std::vector<std::uint16_t> half_leaf(std::int64_t number, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(number));
  std::vector<std::uint16_t> leaf(elements);
  for (auto& element : leaf) element = bf16_from_f32(std::ldexp(static_cast<float>(random() % 2001) - 1000, -7));
  return leaf;
}
std::vector<float> leaf_of(std::int64_t number, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(number) + 100);
  std::vector<float> leaf(elements);
  for (auto& element : leaf)
    element = std::ldexp(static_cast<float>(random() % 200'001) - 1e5F, static_cast<int>(random() % 20));
  return leaf;
}

template <class T>
std::vector<T> whole_tree(const std::vector<std::vector<T>>& leaves, DType dtype, ReduceOp op) {
  std::vector<const std::byte*> inputs;
  for (const auto& leaf : leaves) inputs.push_back(reinterpret_cast<const std::byte*>(leaf.data()));
  std::vector<T> result(leaves.front().size());
  auto* output = reinterpret_cast<std::byte*>(result.data());
  collective::reduce({.dtype = dtype,
                      .op = op,
                      .leaves = inputs,
                      .outputs = {&output, 1},
                      .elements = result.size(),
                      .divisor = leaves.size()});
  return result;
}

// Who owns what: by turn every rank comes to own none, one or many.
std::vector<LeafRange> ownership(int size, unsigned turn) {
  std::mt19937 random(turn);
  std::vector<std::int64_t> borders = {0, kLeaves};
  for (int i = 1; i < size; ++i) borders.push_back(static_cast<std::int64_t>(random() % (kLeaves + 1)));
  std::sort(borders.begin(), borders.end());
  std::vector<LeafRange> ranges;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i)
    ranges.push_back({borders[i], borders[i + 1] - borders[i], kLeaves});
  return ranges;
}

// This rank's partial sums, made by the public helper.
template <class T>
std::vector<float> partials_of(const LeafRange& range, DType dtype, std::vector<std::vector<T>>& leaves, ReduceOp op) {
  const auto elements = static_cast<std::int64_t>(leaves.front().size());
  const auto blocks = static_cast<std::int64_t>(leaf_blocks(range).size());
  std::vector<TensorView> own;
  for (std::int64_t i = 0; i < range.count; ++i) {
    own.push_back(
        {.data = leaves[static_cast<std::size_t>(range.first + i)].data(), .dtype = dtype, .shape = {elements}});
  }
  std::vector<float> partials(static_cast<std::size_t>(blocks * elements) + 1);
  sum_leaves(range, own, {.data = partials.data(), .dtype = DType::f32, .shape = {blocks, elements}}, op);
  return partials;
}

Request over_leaves(Kind kind, const LeafRange& range, std::vector<float>& partials, std::size_t elements,
                    ReduceOp op) {
  Request request{.kind = kind, .input = {}, .output = {}, .op = op};
  request.input = {
      .data = partials.data(),
      .dtype = DType::f32,
      .shape = {static_cast<std::int64_t>(leaf_blocks(range).size()), static_cast<std::int64_t>(elements)}};
  take_partials(request, range);
  return request;
}

class LeavesInWorlds : public testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(LeavesInWorlds, TheResultDoesNotDependOnOwnership) {
  const auto [over, size] = GetParam();
  for (std::size_t elements : {std::size_t{1}, std::size_t{40'003}}) {
    std::vector<std::vector<float>> leaves;
    for (std::int64_t i = 0; i < kLeaves; ++i) leaves.push_back(leaf_of(i, elements));
    std::map<ReduceOp, std::vector<float>> whole;
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max})
      whole[op] = whole_tree(leaves, DType::f32, op);
    run_world(over, size, [&, size = size](Core& core) {
      const auto rank = static_cast<std::size_t>(core.options().rank);
      for (unsigned turn = 0; turn < (under_sanitizer() ? 4 : 10); ++turn) {
        for (const auto& [op, expected] : whole) {
          const LeafRange mine = ownership(size, turn)[rank];
          auto partials = partials_of(mine, DType::f32, leaves, op);
          std::vector<float> output(elements);

          Request request = over_leaves(Kind::all_reduce, mine, partials, elements, op);
          request.output = view(output.data(), elements);
          run(core, request);
          ASSERT_EQ(output, expected) << "all-reduce, turn " << turn;

          const int root = static_cast<int>(turn) % size;
          output.assign(elements, 0.0F);
          request = over_leaves(Kind::reduce, mine, partials, elements, op);
          request.root = root;
          if (core.options().rank == root) request.output = view(output.data(), elements);
          run(core, request);
          ASSERT_EQ(output, core.options().rank == root ? expected : std::vector<float>(elements)) << "reduce";

          request = over_leaves(Kind::reduce_scatter, mine, partials, elements, op);
          const auto scattered = core.submit(request, false);
          core.wait(*scattered);
          Core::check(*scattered);
          const auto part =
              collective::equal_part(static_cast<std::int64_t>(elements), rank, static_cast<std::size_t>(size));
          const auto* got = static_cast<const float*>(scattered->result.data);
          ASSERT_EQ(std::vector<float>(got, got + scattered->result.elements()),
                    std::vector<float>(expected.begin() + part.first, expected.begin() + part.first + part.count));
        }
      }
    });
  }
}

TEST_P(LeavesInWorlds, SixteenBitLeavesAreRoundedOnce) {
  const auto [over, size] = GetParam();
  constexpr std::size_t kElements = 3001;
  std::vector<std::vector<std::uint16_t>> leaves;
  for (std::int64_t i = 0; i < kLeaves; ++i) leaves.push_back(half_leaf(i, kElements));
  const auto expected = whole_tree(leaves, DType::bf16, ReduceOp::average);
  run_world(over, size, [&, size = size](Core& core) {
    for (unsigned turn = 0; turn < 6; ++turn) {
      const LeafRange mine = ownership(size, turn)[static_cast<std::size_t>(core.options().rank)];
      auto partials = partials_of(mine, DType::bf16, leaves, ReduceOp::average);
      std::vector<std::uint16_t> output(kElements);
      Request request = over_leaves(Kind::all_reduce, mine, partials, kElements, ReduceOp::average);
      request.output = view(output.data(), kElements, {}, DType::bf16);
      request.rounded_to = DType::bf16;
      run(core, request);
      ASSERT_EQ(output, expected) << "turn " << turn;
    }
  });
}

TEST_P(LeavesInWorlds, InPlaceTheResultTakesThePlaceOfTheFirstPartialSum) {
  const auto [over, size] = GetParam();
  constexpr std::size_t kElements = 5000;
  std::vector<std::vector<float>> leaves;
  for (std::int64_t i = 0; i < kLeaves; ++i) leaves.push_back(leaf_of(i, kElements));
  const auto expected = whole_tree(leaves, DType::f32, ReduceOp::sum);
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    const auto part = collective::equal_part(kLeaves, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    const LeafRange mine{part.first, part.count, kLeaves};
    auto partials = partials_of(mine, DType::f32, leaves, ReduceOp::sum);
    partials.resize(std::max(partials.size(), kElements));  // the result needs its place also where a rank owns no leaf
    Request request = over_leaves(Kind::all_reduce, mine, partials, kElements, ReduceOp::sum);
    request.output = view(partials.data(), kElements);
    run(core, request);
    partials.resize(kElements);
    EXPECT_EQ(partials, expected);
  });
}

TEST_P(LeavesInWorlds, RangesThatDoNotMakeUpTheWholeFailOnAllRanksAndNothingElseDoes) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&](Core& core) {
    std::vector<float> partials(64), output(4);
    const LeafRange same{0, 4, 8};  // everybody's, so leaves 4 to 7 are nobody's
    Request request = over_leaves(Kind::all_reduce, same, partials, 4, ReduceOp::sum);
    request.output = view(output.data(), 4);
    try {
      run(core, request);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_NE(std::string(error.what()).find("rank 0: 0 to 3"), std::string::npos) << error.what();
    }
    run(core, all_reduce(output.data(), 4));
  });
}

TEST_P(LeavesInWorlds, TheLeavesOfAJoinedRankAreSkipped) {
  const auto [over, size] = GetParam();
  if (size < 2) return;
  constexpr std::size_t kElements = 300;
  std::vector<std::vector<float>> leaves;
  for (std::int64_t i = 0; i < size; ++i) leaves.push_back(leaf_of(i, kElements));
  auto present = leaves;
  present.erase(present.begin());
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    if (rank > 0) {
      const LeafRange mine{rank, 1, size};
      auto partials = partials_of(mine, DType::f32, leaves, ReduceOp::sum);
      std::vector<float> output(kElements);
      Request request = over_leaves(Kind::all_reduce, mine, partials, kElements, ReduceOp::max);
      request.output = view(output.data(), kElements);
      run(core, request);
      EXPECT_EQ(output, whole_tree(present, DType::f32, ReduceOp::max));
    }
    Request join;
    join.kind = Kind::join;
    run(core, join);
  });
}

TEST(LeafRequests, WhatWouldLoseThePromiseIsRefused) {
  run_world(Over::memory, 1, [](Core& core) {
    std::vector<float> partials(8), output(4);
    const LeafRange range{0, 3, 3};
    auto refused = [&](auto change) {
      Request request = over_leaves(Kind::all_reduce, range, partials, 4, ReduceOp::average);
      request.output = view(output.data(), 4);
      change(request);
      EXPECT_THROW(run(core, request), Error);
    };
    refused([](Request& r) { r.prescale = 0.5; });
    refused([](Request& r) { r.input.dtype = r.output.dtype = DType::bf16; });
    refused([](Request& r) { r.input.dtype = r.output.dtype = DType::i32; });
    refused([](Request& r) { r.rounded_to = DType::f64; });
    EXPECT_THROW(over_leaves(Kind::all_reduce, {1, 3, 3}, partials, 4, ReduceOp::sum), Error);
    Request wrong{.kind = Kind::all_reduce, .input = view(partials.data(), 8), .output = view(output.data(), 4)};
    EXPECT_THROW(take_partials(wrong, range), Error) << "eight rows are not one partial sum";
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, LeavesInWorlds,
                         testing::Combine(testing::Values(Over::memory, Over::shm), testing::Values(1, 2, 3, 5)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });
INSTANTIATE_TEST_SUITE_P(OverTcp, LeavesInWorlds, testing::ValuesIn(tcp_worlds({3}, {5})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

}  // namespace
}  // namespace lockstep::engine
