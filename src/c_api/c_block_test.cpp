// Memory that several ranks use and that outlives the engine, and an optimizer's step over it, by the C interface.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"

namespace {

constexpr std::size_t kHeap = 1 << 20;

ls_engine* start(int rank, uint32_t epoch) {
  static const std::string secret(32, 'b');
  ls_options options{};
  options.struct_size = sizeof options;
  EXPECT_EQ(ls_options_from_environment(&options), LS_OK);
  options.size = options.local_size = 2;
  options.rank = options.local_rank = rank;
  options.job = "c-block-test";
  options.secret = secret.data();
  options.secret_bytes = secret.size();
  options.epoch = epoch;
  options.heap_bytes = kHeap;
  ls_engine* engine = nullptr;
  EXPECT_EQ(ls_engine_start(&options, &engine), LS_OK) << ls_last_error();
  return engine;
}

void meet(ls_engine* engine) { EXPECT_EQ(ls_barrier(engine, nullptr, nullptr, nullptr), LS_OK) << ls_last_error(); }

void run_two(const std::function<void(int rank)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(body, rank);
  for (auto& rank : ranks) rank.join();
}

TEST(CBlock, IsSharedAndOutlivesTheEngine) {
  std::atomic<uint64_t> place{0};
  run_two([&](int rank) {
    ls_engine* engine = start(rank, 1);
    EXPECT_EQ(ls_engine_shares_memory(engine), 1);
    ls_block* block = nullptr;
    if (rank == 0) {
      ASSERT_EQ(ls_block_make(engine, 1000, 2, &block), LS_OK) << ls_last_error();
      std::memset(ls_block_data(block), 7, 1000);
      place = ls_block_place(block);
    }
    meet(engine);
    if (rank == 1) {
      ASSERT_EQ(ls_block_open(engine, 0, place, &block), LS_OK) << ls_last_error();
    }
    meet(engine);
    EXPECT_EQ(ls_engine_stop(engine), LS_OK);
    EXPECT_EQ(static_cast<const char*>(ls_block_data(block))[999], 7);
    ls_block_free(block);
  });
}

TEST(CBlock, GoesBackToTheHeapWhenAllHaveLetItGo) {
  constexpr std::size_t kMostOfIt = kHeap * 3 / 4;
  std::atomic<uint64_t> place{0};
  run_two([&](int rank) {
    ls_engine* engine = start(rank, 2);
    ls_block* block = nullptr;
    ls_block* second = nullptr;
    if (rank == 0) {
      ASSERT_EQ(ls_block_make(engine, kMostOfIt, 2, &block), LS_OK);
      ASSERT_NE(block, nullptr);
      place = ls_block_place(block);
    }
    meet(engine);
    if (rank == 1) {
      ASSERT_EQ(ls_block_open(engine, 0, place, &block), LS_OK);
    }
    meet(engine);
    if (rank == 0) {
      ls_block_free(block);
      EXPECT_EQ(ls_block_make(engine, kMostOfIt, 1, &second), LS_OK);
      EXPECT_EQ(second, nullptr) << "the other rank still uses it";
    }
    meet(engine);
    if (rank == 1) ls_block_free(block);
    meet(engine);
    if (rank == 0) {
      EXPECT_EQ(ls_block_make(engine, kMostOfIt, 1, &second), LS_OK);
      EXPECT_NE(second, nullptr) << "nobody uses it any more";
      ls_block_free(second);
    }
    meet(engine);
    EXPECT_EQ(ls_engine_stop(engine), LS_OK);
  });
}

TEST(CBlock, AWorldOfOneHasNone) {
  ls_options options{};
  options.struct_size = sizeof options;
  ASSERT_EQ(ls_options_from_environment(&options), LS_OK);
  options.size = options.local_size = 1;
  options.rank = options.local_rank = 0;
  ls_engine* engine = nullptr;
  ASSERT_EQ(ls_engine_start(&options, &engine), LS_OK) << ls_last_error();
  EXPECT_EQ(ls_engine_shares_memory(engine), 0);
  ls_block* block = nullptr;
  EXPECT_EQ(ls_block_make(engine, 1000, 1, &block), LS_UNAVAILABLE);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ls_engine_stop(engine), LS_OK);
}

// Two tensors of one operation, each with options and a step of its own.
TEST(CBlock, TensorsOfOneStepMayHaveOptionsOfTheirOwn) {
  run_two([&](int rank) {
    ls_engine* engine = start(rank, 3);
    const int64_t shape[1] = {1000};
    std::vector<float> gradients(2000, static_cast<float>(rank)), weights(2000, 1.0F), velocity(2000, 2.0F);
    ls_optimizer_options slow{}, fast{};
    slow.struct_size = fast.struct_size = sizeof slow;
    slow.momentum = fast.momentum = 0.5;
    slow.beta1 = slow.beta2 = fast.beta1 = fast.beta2 = 0.9;
    slow.learning_rate = 0.5;
    fast.learning_rate = 2.0;
    ls_tensor inputs[2] = {}, outputs[2] = {};
    ls_optimized_tensor tensors[2] = {};
    const char* names[] = {"a", "b"};
    for (int i = 0; i < 2; ++i) {
      inputs[i].struct_size = sizeof(ls_tensor);
      inputs[i].data = gradients.data() + 1000 * i;
      inputs[i].dtype = LS_F32;
      inputs[i].ndim = 1;
      inputs[i].shape = shape;
      inputs[i].name = names[i];
      outputs[i] = inputs[i];
      outputs[i].data = weights.data() + 1000 * i;
      tensors[i].struct_size = sizeof(ls_optimized_tensor);
      tensors[i].weights = outputs[i].data;
      tensors[i].dtype = LS_F32;
      tensors[i].state[0] = velocity.data() + 1000 * i;
    }
    tensors[1].options = &fast;
    tensors[1].step = 1;
    const ls_optimizer_step step{sizeof(ls_optimizer_step), &slow, 2, tensors, 2};
    ls_reduce_options options{};
    options.struct_size = sizeof options;
    options.op = LS_SUM;
    options.prescale = options.postscale = 1.0;
    options.epilogue = ls_optimizer_epilogue;
    options.epilogue_user = const_cast<ls_optimizer_step*>(&step);
    ASSERT_EQ(ls_grouped_all_reduce(engine, inputs, outputs, 2, &options, nullptr), LS_OK) << ls_last_error();
    // 1 - 0.5 * (0.5 * 2 + 1), with a past; 1 - 2 * 1, without.
    EXPECT_TRUE(std::all_of(weights.begin(), weights.begin() + 1000, [](float weight) { return weight == 0.0F; }));
    EXPECT_TRUE(std::all_of(weights.begin() + 1000, weights.end(), [](float weight) { return weight == -1.0F; }));
    meet(engine);
    EXPECT_EQ(ls_engine_stop(engine), LS_OK);
  });
}

}  // namespace
