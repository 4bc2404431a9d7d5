#include <gtest/gtest.h>

#include "engine/engines_test.hpp"

namespace lockstep {
namespace {

float sum_in(Engine& engine, const Group& group, const std::string& name = {}) {
  float value = static_cast<float>(engine.rank() + 1);
  const TensorView tensor = tensor_at(&value, {1}, name);
  engine.all_reduce(tensor, tensor, {.group = group});
  return value;
}

TEST(Groups, ExistFromTheStart) {
  Options options;
  options.groups = {{0, 1}, {2, 1}, {0, 1}};
  run_engines(
      3,
      [](Engine& engine) {
        const int rank = engine.rank();
        if (rank < 2) {
          EXPECT_EQ(sum_in(engine, engine.group(0), "same"), 3.0F);
          EXPECT_EQ(sum_in(engine, engine.group(2), "same"), 3.0F);
        } else {
          EXPECT_THROW(engine.group(0), Error);
        }
        if (rank > 0) {
          EXPECT_EQ(engine.group(1).ranks(), (std::vector<int>{1, 2}));
          EXPECT_EQ(sum_in(engine, engine.group(1)), 5.0F);
        }
        EXPECT_THROW(engine.group(3), Error);
        engine.barrier();
      },
      options);
}

TEST(Groups, OfTheOptionsMustMakeSense) {
  for (const std::vector<int>& ranks : {std::vector<int>{}, {0, 0}, {0, 1}, {-1}}) {
    Options options;
    options.groups = {{0}, ranks};
    EXPECT_THROW(Engine{options}, Error);
  }
}

// Not a copy of the old one: operations of both are told apart, also while the old one's are under way.
TEST(Groups, RemovedOnesAreMadeAgainAndUsed) {
  run_engines(3, [](Engine& engine) {
    for (int turn = 0; turn < 20; ++turn) {
      if (engine.rank() == 1) break;
      float value = 1;
      const TensorView tensor = tensor_at(&value, {1}, "pending");
      Work pending;
      {
        const Group removed = engine.make_group({0, 2});
        EXPECT_EQ(sum_in(engine, removed), 4.0F);
        pending = engine.all_reduce_async(tensor, tensor, {.group = removed});
      }
      const Group again = engine.make_group({2, 0});
      EXPECT_EQ(sum_in(engine, again), 4.0F);
      EXPECT_EQ(sum_in(engine, again, "pending"), 4.0F) << "a name of the group that is gone";
      pending.wait();
      EXPECT_EQ(value, 2.0F);
    }
    EXPECT_EQ(sum_in(engine, {}), 6.0F);
  });
}

}  // namespace
}  // namespace lockstep
