#include <gtest/gtest.h>

#include "engine/engines_test.hpp"

namespace lockstep {
namespace {

std::uint64_t value_of(const Engine& engine, const std::string& name, const std::string& kind) {
  for (const Counter& counter : engine.counters()) {
    if (counter.name == name && counter.kind == kind) return counter.value;
  }
  ADD_FAILURE() << "no counter " << name << " of '" << kind << "'";
  return 0;
}

TEST(EngineCounters, TellWhatWasDone) {
  run_engines(2, [](Engine& engine) {
    std::vector<float> values(100, 1.0F);
    const TensorView tensor = tensor_at(values.data(), {100}, "x");
    engine.begin_step();
    for (int i = 0; i < 2; ++i) engine.all_reduce(tensor, tensor);
    engine.all_gather(tensor);
    engine.end_step();
    const TensorView wrong = tensor_at(values.data(), {engine.rank() + 1}, "wrong");
    EXPECT_THROW(engine.all_reduce(wrong, wrong), Error);
    EXPECT_EQ(value_of(engine, "operations_submitted", "all-reduce"), 3U);
    EXPECT_EQ(value_of(engine, "operations_done", "all-reduce"), 2U);
    EXPECT_EQ(value_of(engine, "operations_failed", "all-reduce"), 1U);
    EXPECT_EQ(value_of(engine, "bytes_done", "all-reduce"), 800U);
    EXPECT_EQ(value_of(engine, "operations_done", "all-gather"), 1U);
    EXPECT_GT(value_of(engine, "worked_ns", "all-gather"), 0U);
    EXPECT_EQ(value_of(engine, "steps", ""), 1U);
    EXPECT_GT(value_of(engine, "notices", ""), 0U);
  });
}

}  // namespace
}  // namespace lockstep
