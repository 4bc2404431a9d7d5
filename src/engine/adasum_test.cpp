// Adasum through the whole engine, against its definition pair by pair, and the same bits on both transports.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

// The definition: whole vectors, pair by pair along the tree.
Vector reference(const std::vector<std::optional<Vector>>& leaves) {
  return *reduce_tree(
      0, leaves.size(), [&](std::size_t i) { return leaves[i]; },
      [](const Vector& a, const Vector& b) {
        const double across = dot(a, b), of_a = dot(a, a), of_b = dot(b, b);
        const double x = of_a == 0 ? 1 : 1 - across / (2 * of_a), y = of_b == 0 ? 1 : 1 - across / (2 * of_b);
        Vector joined(a.size());
        for (std::size_t i = 0; i < a.size(); ++i) joined[i] = x * a[i] + y * b[i];
        return joined;
      });
}

Vector gradient(int rank, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(rank) + 5);
  std::normal_distribution<float> value(0.25F, 1.0F);  // neither parallel nor orthogonal
  Vector result(elements);
  for (double& element : result) element = value(random) * static_cast<float>(rank + 1);
  return result;
}

void put(DType dtype, std::vector<std::byte>& to, const Vector& values) {
  to.resize(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<float>(values[i]);
    if (dtype == DType::f64) reinterpret_cast<double*>(to.data())[i] = values[i];
    if (dtype == DType::f32) reinterpret_cast<float*>(to.data())[i] = narrow;
    if (dtype == DType::f16) reinterpret_cast<std::uint16_t*>(to.data())[i] = f16_from_f32(narrow);
    if (dtype == DType::bf16) reinterpret_cast<std::uint16_t*>(to.data())[i] = bf16_from_f32(narrow);
  }
}

Vector get(DType dtype, const std::vector<std::byte>& from) {
  Vector values(from.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f64) values[i] = reinterpret_cast<const double*>(from.data())[i];
    if (dtype == DType::f32) values[i] = reinterpret_cast<const float*>(from.data())[i];
    if (dtype == DType::f16) values[i] = f32_from_f16(reinterpret_cast<const std::uint16_t*>(from.data())[i]);
    if (dtype == DType::bf16) values[i] = f32_from_bf16(reinterpret_cast<const std::uint16_t*>(from.data())[i]);
  }
  return values;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-11;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 2e-3;
    default:
      return 1e-2;
  }
}

class AdasumInWorlds : public testing::TestWithParam<int> {};

TEST_P(AdasumInWorlds, FollowsItsDefinitionWithTheSameBitsOnEveryRankAndTransport) {
  const int size = GetParam();
  for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (std::size_t elements : {std::size_t{1}, std::size_t{1000}, std::size_t{20'001}}) {
      std::vector<std::optional<Vector>> leaves;
      for (int rank = 0; rank < size; ++rank) {
        std::vector<std::byte> stored;
        put(dtype, stored, gradient(rank, elements));
        leaves.emplace_back(get(dtype, stored));
      }
      const Vector expected = reference(leaves);
      std::mutex mutex;
      std::optional<std::vector<std::byte>> first;
      for (Over over : {Over::memory, Over::shm}) {
        run_world(over, size, [&](Core& core) {
          std::vector<std::byte> data;
          put(dtype, data, gradient(core.options().rank, elements));
          Request request{.kind = Kind::all_reduce,
                          .input = view(data.data(), elements, {}, dtype),
                          .output = view(data.data(), elements, {}, dtype),
                          .op = ReduceOp::adasum};
          run(core, request);
          const Vector got = get(dtype, data);
          for (std::size_t i = 0; i < elements; ++i) {
            ASSERT_NEAR(got[i], expected[i], tolerance(dtype) * size * (1 + std::abs(expected[i]))) << "element " << i;
          }
          std::lock_guard lock(mutex);
          if (!first) first = data;
          EXPECT_EQ(data, *first) << name_of(over) << ", " << elements << " of " << lockstep::name_of(dtype);
        });
      }
    }
  }
}

TEST_P(AdasumInWorlds, ParallelVectorsAreAveragedOrthogonalOnesAddedAndZerosSkipped) {
  const int size = GetParam();
  for (Over over : {Over::memory, Over::shm, Over::tcp}) {
    run_world(over, size, [&](Core& core) {
      const int rank = core.options().rank;
      std::vector<float> same(100, 3.0F), apart(100, 0.0F), one(100, 0.0F);
      apart[static_cast<std::size_t>(rank)] = 2.0F;
      if (rank == size - 1) one.assign(100, -5.0F);
      const std::vector<float> expected_one(100, -5.0F);
      run(core, all_reduce(same.data(), 100, {}, ReduceOp::adasum));
      run(core, all_reduce(apart.data(), 100, {}, ReduceOp::adasum));
      run(core, all_reduce(one.data(), 100, {}, ReduceOp::adasum));
      for (float value : same) EXPECT_FLOAT_EQ(value, 3.0F);
      for (int i = 0; i < 100; ++i) EXPECT_EQ(apart[static_cast<std::size_t>(i)], i < size ? 2.0F : 0.0F);
      EXPECT_EQ(one, expected_one);
    });
  }
}

TEST_P(AdasumInWorlds, OppositesCancelAndWhatIsNotANumberIsSeen) {
  const int size = GetParam();
  if (size < 2) return;
  run_world(Over::shm, size, [&](Core& core) {
    const int rank = core.options().rank;
    std::vector<float> data(3000, rank == 0 ? 1.5F : rank == 1 ? -1.5F : 0.0F);
    run(core, all_reduce(data.data(), data.size(), {}, ReduceOp::adasum));
    for (float value : data) ASSERT_EQ(value, 0.0F);
    data.assign(3000, 1.0F);
    if (rank == size - 1) data[2999] = std::numeric_limits<float>::quiet_NaN();
    run(core, all_reduce(data.data(), data.size(), {}, ReduceOp::adasum));
    EXPECT_TRUE(std::isnan(data[0])) << "one gradient has no norm";
  });
}

TEST_P(AdasumInWorlds, AJoinedRankIsSkippedAndScalesApply) {
  const int size = GetParam();
  constexpr std::size_t kElements = 5000;
  std::vector<std::optional<Vector>> leaves(1);
  for (int rank = 1; rank < size; ++rank) leaves.emplace_back(gradient(rank, kElements));
  for (Over over : {Over::memory, Over::shm, Over::tcp}) {
    run_world(over, size, [&, size](Core& core) {
      const int rank = core.options().rank;
      if (rank > 0 && size > 1) {
        const Vector mine = gradient(rank, kElements);
        std::vector<double> data = mine;
        Request request{.kind = Kind::all_reduce,
                        .input = view(data.data(), kElements, {}, DType::f64),
                        .output = view(data.data(), kElements, {}, DType::f64),
                        .op = ReduceOp::adasum,
                        .prescale = 0.5,
                        .postscale = 4.0};
        run(core, request);
        const Vector expected = reference(leaves);
        for (std::size_t i = 0; i < kElements; ++i) ASSERT_NEAR(data[i], 2 * expected[i], 1e-9);
      }
      Request join;
      join.kind = Kind::join;
      run(core, join);
    });
  }
}

TEST(AdasumRequests, OnlyAllReduceOfRealFloats) {
  run_world(Over::memory, 1, [](Core& core) {
    std::vector<float> data(8), output(8);
    Request scatter{.kind = Kind::reduce_scatter, .input = view(data.data(), 8), .output = {}, .op = ReduceOp::adasum};
    EXPECT_THROW(run(core, scatter), Error);
    Request integers = all_reduce(data.data(), 8, {}, ReduceOp::adasum);
    integers.input.dtype = integers.output.dtype = DType::i32;
    EXPECT_THROW(run(core, integers), Error);
    Request updating = all_reduce(data.data(), 8, {}, ReduceOp::adasum);
    updating.epilogue = [](const ReducedSlice&) {};
    EXPECT_THROW(run(core, updating), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, AdasumInWorlds, testing::Values(1, 2, 3, 4, 5, 8),
                         [](const auto& test) { return std::string("ranks").append(std::to_string(test.param)); });

}  // namespace
}  // namespace lockstep::engine
