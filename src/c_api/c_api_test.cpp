#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "c_api/c_engines_test.hpp"
#include "lockstep/version.hpp"

namespace {

TEST(CApi, TwoRanksReduceBroadcastAndStep) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank] {
      const ls_options options = world_of(2, rank, 1);
      ls_engine* engine = nullptr;
      ASSERT_EQ(ls_engine_start(&options, &engine), LS_OK) << ls_last_error();
      EXPECT_EQ(ls_engine_rank(engine), rank);
      EXPECT_EQ(ls_engine_size(engine), 2);
      EXPECT_EQ(ls_engine_local_rank(engine), rank);
      EXPECT_EQ(ls_engine_local_size(engine), 2);

      const int64_t shape[1] = {100};
      auto* values = static_cast<float*>(ls_allocate(engine, 100 * sizeof(float)));
      ASSERT_NE(values, nullptr);
      for (int i = 0; i < 100; ++i) values[i] = static_cast<float>(rank + 1);
      const ls_tensor tensor = tensor_of(values, shape, "t");
      ls_reduce_options average{};
      average.struct_size = offsetof(ls_reduce_options, prescale);  // as a caller that knows no more
      average.op = LS_AVERAGE;
      EXPECT_EQ(ls_begin_step(engine), LS_OK);
      ls_work* work = nullptr;
      ASSERT_EQ(ls_all_reduce(engine, &tensor, &tensor, &average, &work), LS_OK) << ls_last_error();
      EXPECT_EQ(ls_work_wait(work, -1), LS_OK);
      int done = 0;
      EXPECT_EQ(ls_work_poll(work, &done), LS_OK);
      EXPECT_EQ(done, 1);
      ls_work_free(work);
      uint64_t steps = 0;
      EXPECT_EQ(ls_end_step(engine, &steps), LS_OK);
      EXPECT_EQ(steps, 1U);
      EXPECT_EQ(values[99], 1.5F);

      EXPECT_EQ(ls_all_reduce_in_step(engine, &tensor, nullptr), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_begin_exclusive_step(engine), LS_OK);
      EXPECT_EQ(ls_all_reduce_in_step(engine, &tensor, nullptr), LS_OK) << ls_last_error();
      const ls_tensor nameless = tensor_of(values, shape, nullptr);
      EXPECT_EQ(ls_all_reduce_in_step(engine, &nameless, nullptr), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_end_step(engine, nullptr), LS_OK);
      EXPECT_EQ(values[99], 3.0F);

      float second[100] = {1.0F};
      const ls_tensor other = tensor_of(nullptr, shape, "u");
      const ls_placed_tensor placed[] = {{&tensor, values}, {&other, second}, {&nameless, values}};
      EXPECT_EQ(ls_begin_exclusive_step(engine), LS_OK);
      EXPECT_EQ(ls_all_reduce_several_in_step(engine, placed, 2, nullptr), LS_OK) << ls_last_error();
      EXPECT_EQ(ls_all_reduce_several_in_step(engine, nullptr, 0, nullptr), LS_OK);
      EXPECT_EQ(ls_all_reduce_several_in_step(engine, nullptr, 1, nullptr), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_all_reduce_several_in_step(engine, placed + 2, 1, nullptr), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_end_step(engine, nullptr), LS_OK);
      EXPECT_EQ(values[99], 6.0F);
      EXPECT_EQ(second[0], 2.0F);

      values[0] = static_cast<float>(10 + rank);
      EXPECT_EQ(ls_broadcast(engine, &tensor, 1, nullptr, nullptr), LS_OK);
      EXPECT_EQ(values[0], 11.0F);
      EXPECT_EQ(ls_barrier(engine, "end", nullptr, nullptr), LS_OK);
      EXPECT_EQ(ls_deallocate(engine, values), LS_OK);
      EXPECT_EQ(ls_deallocate(engine, values), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_engine_stop(engine), LS_OK);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(CApi, AtOnceItIsDoneOrHandedOver) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank] {
      const ls_options options = world_of(2, rank, 3);
      ls_engine* engine = nullptr;
      ASSERT_EQ(ls_engine_start(&options, &engine), LS_OK) << ls_last_error();
      for (int turn = 0; turn < 100; ++turn) {
        float values[] = {1.0F, static_cast<float>(turn)};
        const int64_t shape[] = {2};
        const ls_tensor tensor = tensor_of(values, shape, turn % 2 == 0 ? nullptr : "named");
        ls_work* work = nullptr;
        ASSERT_EQ(ls_all_reduce_at_once(engine, &tensor, &tensor, nullptr, &work), LS_OK) << ls_last_error();
        if (work != nullptr) {
          EXPECT_EQ(ls_work_wait(work, -1), LS_OK) << ls_last_error();
          ls_work_free(work);
        }
        EXPECT_EQ(values[0], 2.0F);
        EXPECT_EQ(values[1], static_cast<float>(2 * turn));
      }
      EXPECT_EQ(ls_all_reduce_at_once(engine, nullptr, nullptr, nullptr, nullptr), LS_INVALID_ARGUMENT);
      EXPECT_EQ(ls_engine_stop(engine), LS_OK);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(CApi, MistakesComeBackAsStatusAndText) {
  EXPECT_STREQ(ls_version(), lockstep::version());
  EXPECT_EQ(ls_engine_stop(nullptr), LS_INVALID_ARGUMENT);
  EXPECT_STRNE(ls_last_error(), "");
  EXPECT_EQ(ls_engine_start(nullptr, nullptr), LS_INVALID_ARGUMENT);
  EXPECT_EQ(ls_engine_rank(nullptr), -1);
  EXPECT_EQ(ls_work_wait(nullptr, 0), LS_INVALID_ARGUMENT);
  ls_work_free(nullptr);

  ls_engine* engine = nullptr;
  ls_options bad = world_of(2, 5, 2);
  EXPECT_EQ(ls_engine_start(&bad, &engine), LS_INVALID_ARGUMENT);
  EXPECT_EQ(engine, nullptr);
  bad = world_of(2, 0, 2);
  bad.secret_bytes = 3;
  EXPECT_EQ(ls_engine_start(&bad, &engine), LS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ls_last_error()).find("lockstep run"), std::string::npos);

  ls_options alone = world_of(1, 0, 3);
  ASSERT_EQ(ls_engine_start(&alone, &engine), LS_OK) << ls_last_error();
  float value = 3;
  const int64_t shape[1] = {1};
  ls_tensor tensor = tensor_of(&value, shape, nullptr);
  EXPECT_EQ(ls_all_reduce(engine, &tensor, &tensor, nullptr, nullptr), LS_OK);
  EXPECT_EQ(value, 3.0F);
  tensor.dtype = 99;
  EXPECT_EQ(ls_all_reduce(engine, &tensor, &tensor, nullptr, nullptr), LS_INVALID_ARGUMENT);
  tensor.struct_size = 0;
  EXPECT_EQ(ls_all_reduce(engine, &tensor, &tensor, nullptr, nullptr), LS_INVALID_ARGUMENT);
  EXPECT_EQ(ls_all_reduce(engine, nullptr, nullptr, nullptr, nullptr), LS_INVALID_ARGUMENT);
  ls_reduce_options strange{};
  strange.struct_size = sizeof strange;
  strange.op = 42;
  tensor = tensor_of(&value, shape, nullptr);
  EXPECT_EQ(ls_all_reduce(engine, &tensor, &tensor, &strange, nullptr), LS_INVALID_ARGUMENT);
  EXPECT_EQ(ls_abort(engine, "enough"), LS_OK);
  EXPECT_EQ(ls_barrier(engine, nullptr, nullptr, nullptr), LS_ABORTED);
  EXPECT_EQ(ls_engine_stop(engine), LS_OK);
}

TEST(CApi, LeavesAreCutIntoBlocksAndAddedUp) {
  ls_leaf_block blocks[8];
  size_t count = 0;
  ASSERT_EQ(ls_leaf_blocks(8, 1, 6, blocks, 8, &count), LS_OK);
  ASSERT_EQ(count, 4U);
  EXPECT_EQ(blocks[1].first, 2);
  EXPECT_EQ(blocks[1].count, 2);
  EXPECT_EQ(ls_leaf_blocks(8, 5, 6, nullptr, 0, &count), LS_INVALID_ARGUMENT);

  float one = 1.5F, two = 2.25F, sum = 0.0F;
  const int64_t shape[1] = {1}, partial_shape[2] = {1, 1};
  const ls_tensor leaves[2] = {tensor_of(&one, shape, nullptr), tensor_of(&two, shape, nullptr)};
  ls_tensor partials = tensor_of(&sum, partial_shape, nullptr);
  partials.ndim = 2;
  ASSERT_EQ(ls_sum_leaves(4, 2, 2, leaves, &partials, LS_SUM, 2.0), LS_OK) << ls_last_error();
  EXPECT_EQ(sum, 7.5F);
}

}  // namespace
