// What is seldom called through the C interface: after a failure, to look into a run, and the optimizers.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "c_api/c_engines_test.hpp"

namespace {

TEST(CApi, HasTheVersionOfItsHeader) { EXPECT_EQ(ls_abi_version(), LS_ABI_VERSION); }

TEST(CApi, SurvivorsAgreeAndGoOn) {
  run_c_engines(3, 8, [](ls_engine* engine, int rank) {
    if (rank == 1) return;                                             // leaves
    const int status = ls_barrier(engine, nullptr, nullptr, nullptr);  // the other may have gone to agree already
    EXPECT_TRUE(status == LS_PEER_LOST || status == LS_ABORTED) << status << ": " << ls_last_error();
    ls_agreement agreement{};
    agreement.struct_size = sizeof agreement;
    ASSERT_EQ(ls_agree(engine, &agreement), LS_OK) << ls_last_error();
    ASSERT_EQ(agreement.failed_count, 1U);
    EXPECT_EQ(agreement.failed[0], 1);
    ASSERT_EQ(agreement.survivor_count, 2U);
    EXPECT_EQ(agreement.survivors[0], 0);
    EXPECT_EQ(agreement.survivors[1], 2);
    EXPECT_EQ(agreement.steps, 0U);
    EXPECT_EQ(ls_agree(engine, nullptr), LS_INVALID_ARGUMENT);

    ls_engine* next = nullptr;
    ASSERT_EQ(ls_engine_continue(engine, &next), LS_OK) << ls_last_error();
    EXPECT_EQ(ls_engine_rank(next), rank == 0 ? 0 : 1);
    EXPECT_EQ(ls_engine_size(next), 2);
    float value = 1;
    const int64_t shape[] = {1};
    const ls_tensor tensor = tensor_of(&value, shape, "again");
    EXPECT_EQ(ls_all_reduce(next, &tensor, &tensor, nullptr, nullptr), LS_OK) << ls_last_error();
    EXPECT_EQ(value, 2.0F);
    EXPECT_EQ(ls_engine_stop(next), LS_OK);
    EXPECT_EQ(ls_engine_continue(engine, nullptr), LS_INVALID_ARGUMENT);
  });
}

TEST(CApi, TimelinesAreMergedAndTheFlightRecordTells) {
  const std::string folder = testing::TempDir() + "/c-timeline-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  run_c_engines(2, 9, [&](ls_engine* engine, int) {
    ASSERT_EQ(ls_timeline_start(engine, (folder + "/trace.json").c_str(), 0), LS_OK) << ls_last_error();
    EXPECT_EQ(ls_barrier(engine, "meet", nullptr, nullptr), LS_OK);
    EXPECT_EQ(ls_timeline_stop(engine), LS_OK);
    const char* record = ls_flight_record(engine);
    ASSERT_NE(record, nullptr);
    EXPECT_NE(std::string(record).find("barrier 'meet'"), std::string::npos) << record;
  });
  EXPECT_EQ(ls_flight_record(nullptr), nullptr);

  const std::string first = folder + "/trace.0.json", second = folder + "/trace.1.json", merged = folder + "/all.json";
  const char* paths[] = {first.c_str(), second.c_str()};
  ASSERT_EQ(ls_timeline_merge(paths, 2, merged.c_str()), LS_OK) << ls_last_error();
  std::stringstream text;
  text << std::ifstream(merged).rdbuf();
  EXPECT_NE(text.str().find("\"pid\":0"), std::string::npos);
  EXPECT_NE(text.str().find("\"pid\":1"), std::string::npos);
  paths[1] = "/nowhere/trace.json";
  EXPECT_EQ(ls_timeline_merge(paths, 2, merged.c_str()), LS_SYSTEM);
  EXPECT_EQ(ls_timeline_merge(nullptr, 1, merged.c_str()), LS_INVALID_ARGUMENT);
  EXPECT_EQ(ls_timeline_merge(paths, 1, nullptr), LS_INVALID_ARGUMENT);
  std::filesystem::remove_all(folder);
}

TEST(CApi, CountersTellWhatWasDone) {
  run_c_engines(2, 11, [](ls_engine* engine, int) {
    float value = 1;
    const int64_t shape[] = {1};
    const ls_tensor tensor = tensor_of(&value, shape, "x");
    for (int i = 0; i < 3; ++i) EXPECT_EQ(ls_broadcast(engine, &tensor, 0, nullptr, nullptr), LS_OK);
    size_t count = 0;
    ASSERT_EQ(ls_counters(engine, nullptr, 0, &count), LS_OK) << ls_last_error();
    std::vector<ls_counter> counters(count);
    EXPECT_EQ(ls_counters(engine, counters.data(), count, &count), LS_INVALID_ARGUMENT) << "no struct_size";
    counters[0].struct_size = sizeof(ls_counter);
    ASSERT_EQ(ls_counters(engine, counters.data(), count, &count), LS_OK) << ls_last_error();
    std::map<std::string, uint64_t> of_broadcast, of_engine;
    for (const ls_counter& counter : counters) {
      if (counter.kind == std::string("broadcast")) of_broadcast[counter.name] = counter.value;
      if (counter.kind == std::string()) of_engine[counter.name] = counter.value;
    }
    EXPECT_EQ(of_broadcast["operations_done"], 3U);
    EXPECT_EQ(of_broadcast["bytes_done"], 12U);
    EXPECT_EQ(of_engine.count("steps"), 1U);
    EXPECT_EQ(ls_counters(engine, nullptr, 0, nullptr), LS_INVALID_ARGUMENT);
  });
}

TEST(CApi, OwnedSlicesMakeUpTheTensor) {
  size_t next = 0;
  for (size_t index = 0; index < 3; ++index) {
    size_t offset = 0, count = 0;
    ASSERT_EQ(ls_owned_slice(1000, LS_F32, index, 3, &offset, &count), LS_OK);
    EXPECT_EQ(offset, next);
    next += count;
  }
  EXPECT_EQ(next, 1000U);
  size_t offset = 0, count = 0;
  EXPECT_EQ(ls_owned_slice(1000, LS_F32, 3, 3, &offset, &count), LS_INVALID_ARGUMENT);
  EXPECT_EQ(ls_owned_slice(1000, LS_F32, 0, 3, nullptr, &count), LS_INVALID_ARGUMENT);
}

// Weights of 1 and an average gradient of 2, with a learning rate of a quarter.
TEST(CApi, AnOptimizerIsTheEpilogueOfAnAllReduce) {
  run_c_engines(2, 10, [](ls_engine* engine, int rank) {
    std::vector<float> weights(1000, 1.0F), gradient(1000, static_cast<float>(2 * rank + 1));
    ls_optimizer_options sgd{};
    sgd.struct_size = sizeof sgd;
    sgd.kind = LS_SGD;
    sgd.learning_rate = 0.25;
    size_t states = 9;
    ASSERT_EQ(ls_optimizer_state_count(&sgd, &states), LS_OK) << ls_last_error();
    EXPECT_EQ(states, 0U);
    ls_optimized_tensor optimized{};
    optimized.struct_size = sizeof optimized;
    optimized.weights = weights.data();
    optimized.dtype = LS_F32;
    size_t count = 0;
    ASSERT_EQ(ls_owned_slice(1000, LS_F32, static_cast<size_t>(rank), 2, &optimized.first, &count), LS_OK);
    ls_optimizer_step step{};
    step.struct_size = sizeof step;
    step.options = &sgd;
    step.step = 1;
    step.tensors = &optimized;
    step.tensor_count = 1;

    ls_reduce_options options{};
    options.struct_size = sizeof options;
    options.op = LS_AVERAGE;
    options.prescale = options.postscale = 1.0;
    options.epilogue = ls_optimizer_epilogue;
    options.epilogue_user = &step;
    const int64_t shape[] = {1000};
    const ls_tensor input = tensor_of(gradient.data(), shape, "w"), output = tensor_of(weights.data(), shape, "w");
    ASSERT_EQ(ls_all_reduce(engine, &input, &output, &options, nullptr), LS_OK) << ls_last_error();
    EXPECT_EQ(weights, std::vector<float>(1000, 0.5F));

    step.tensor_count = 0;  // now a tensor has no weights
    EXPECT_NE(ls_all_reduce(engine, &input, &output, &options, nullptr), LS_OK);
    EXPECT_NE(std::string(ls_last_error()).find("has no weights"), std::string::npos) << ls_last_error();
  });
}

}  // namespace
