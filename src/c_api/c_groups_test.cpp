#include <gtest/gtest.h>

#include "c_api/c_engines_test.hpp"

namespace {

float sum_in(ls_engine* engine, const ls_group* group) {
  auto value = static_cast<float>(ls_engine_rank(engine) + 1);
  const int64_t shape[] = {1};
  const ls_tensor tensor = tensor_of(&value, shape, "sum");
  ls_reduce_options options{};
  options.struct_size = sizeof options;
  options.op = LS_SUM;
  options.prescale = options.postscale = 1.0;
  options.group = group;
  EXPECT_EQ(ls_all_reduce(engine, &tensor, &tensor, &options, nullptr), LS_OK) << ls_last_error();
  return value;
}

TEST(CApi, GroupsExistFromTheStartAndRemovedOnesAreMadeAgain) {
  const int32_t ranks[] = {0, 1, 2, 1};
  const size_t sizes[] = {2, 2};
  auto with_groups = [&](ls_options& options) {
    options.group_ranks = ranks;
    options.group_sizes = sizes;
    options.group_count = 2;
  };
  run_c_engines(
      3, 6,
      [](ls_engine* engine, int rank) {
        ls_group* group = nullptr;
        EXPECT_EQ(ls_group_at_start(engine, 2, &group), LS_INVALID_ARGUMENT);
        EXPECT_EQ(ls_group_at_start(engine, 0, &group), rank < 2 ? LS_OK : LS_INVALID_ARGUMENT);
        if (rank < 2) {
          EXPECT_EQ(sum_in(engine, group), 3.0F);
        }
        ls_group_free(group);
        EXPECT_EQ(ls_group_at_start(engine, 1, &group), rank > 0 ? LS_OK : LS_INVALID_ARGUMENT);
        if (rank > 0) {
          EXPECT_EQ(sum_in(engine, group), 5.0F);
        }
        ls_group_free(group);

        const int32_t ends[] = {0, 2};
        for (int turn = 0; turn < 3 && rank != 1; ++turn) {
          ASSERT_EQ(ls_group_make(engine, ends, 2, &group), LS_OK) << ls_last_error();
          EXPECT_EQ(sum_in(engine, group), 4.0F);
          ls_group_free(group);
        }
        EXPECT_EQ(sum_in(engine, nullptr), 6.0F);
      },
      with_groups);

  ls_options broken = world_of(1, 0, 7);
  broken.group_count = 1;
  ls_engine* engine = nullptr;
  EXPECT_EQ(ls_engine_start(&broken, &engine), LS_INVALID_ARGUMENT);
}

}  // namespace
