#include <gtest/gtest.h>

#include <string>

#include "lockstep/lockstep.h"

namespace {

TEST(CSharedWeights, AreMadeLoadedUpdatedAndFreed) {
  ls_options alone{};
  alone.struct_size = sizeof alone;
  ASSERT_EQ(ls_options_from_environment(&alone), LS_OK);
  alone.rank = alone.local_rank = 0;
  alone.size = alone.local_size = 1;
  ls_engine* engine = nullptr;
  ASSERT_EQ(ls_engine_start(&alone, &engine), LS_OK) << ls_last_error();

  ls_shared_tensor tensors[2] = {{sizeof(ls_shared_tensor), "a", LS_F32, 3, 0},
                                 {sizeof(ls_shared_tensor), "b", LS_F64, 1, 0}};
  ls_optimizer_options sgd{};
  sgd.struct_size = sizeof sgd;
  sgd.kind = LS_SGD;
  sgd.learning_rate = 0.5;
  sgd.momentum = 0.9;
  ls_shared_weights* weights = nullptr;
  EXPECT_EQ(ls_shared_weights_make(engine, tensors, 2, nullptr, 0, &weights), LS_INVALID_ARGUMENT);
  EXPECT_EQ(weights, nullptr);
  ASSERT_EQ(ls_shared_weights_make(engine, tensors, 2, &sgd, 1, &weights), LS_OK) << ls_last_error();

  const float first[3] = {1.0F, 2.0F, 3.0F};
  ls_shared_values values[2] = {{sizeof(ls_shared_values), first, {}, -1}, {sizeof(ls_shared_values), nullptr, {}, 7}};
  ASSERT_EQ(ls_shared_weights_load(weights, values, 2), LS_OK) << ls_last_error();
  EXPECT_EQ(ls_shared_weights_load(weights, values, 1), LS_INVALID_ARGUMENT);

  const void* shown = nullptr;
  const void* state[3] = {};
  void* gradient = nullptr;
  ASSERT_EQ(ls_shared_weights_place(weights, 0, &shown, state, &gradient), LS_OK);
  EXPECT_NE(state[0], nullptr);
  EXPECT_EQ(state[1], nullptr);
  EXPECT_EQ(ls_shared_weights_place(weights, 2, &shown, state, &gradient), LS_INVALID_ARGUMENT);
  const void* area = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(ls_shared_weights_gradients(weights, &area, &bytes), LS_OK);
  EXPECT_GE(static_cast<const char*>(gradient), static_cast<const char*>(area));
  EXPECT_LT(static_cast<const char*>(gradient), static_cast<const char*>(area) + bytes);
  int served = 1;
  ASSERT_EQ(ls_shared_weights_serve(weights, nullptr, &served), LS_OK);
  EXPECT_EQ(served, 0);  // nothing is preloaded
  static_cast<float*>(gradient)[1] = 2.0F;
  const void* gradients[2] = {gradient, nullptr};
  uint64_t before = 0, after = 0;
  EXPECT_EQ(ls_shared_weights_hash(weights, &before), LS_OK);
  ASSERT_EQ(ls_shared_weights_update(weights, &sgd, 1, nullptr, gradients, 2), LS_OK) << ls_last_error();
  EXPECT_EQ(ls_shared_weights_hash(weights, &after), LS_OK);
  EXPECT_NE(before, after);
  EXPECT_EQ(static_cast<const float*>(shown)[0], 1.0F);
  EXPECT_EQ(static_cast<const float*>(shown)[1], 1.0F);
  int64_t steps[2] = {};
  EXPECT_EQ(ls_shared_weights_steps(weights, 0, &steps[0]), LS_OK);
  EXPECT_EQ(ls_shared_weights_steps(weights, 1, &steps[1]), LS_OK);
  EXPECT_EQ(steps[0], 1);
  EXPECT_EQ(steps[1], 7);

  EXPECT_EQ(ls_shared_weights_recover(weights, nullptr, nullptr, nullptr), LS_INVALID_ARGUMENT);
  ls_shared_weights_free(weights);
  EXPECT_EQ(ls_engine_stop(engine), LS_OK);
}

}  // namespace
