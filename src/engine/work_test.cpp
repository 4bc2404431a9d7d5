#include <gtest/gtest.h>

#include "engine/engines_test.hpp"

namespace lockstep {
namespace {

TEST(Work, TellsItsExceptionWithoutThrowingIt) {
  run_engines(2, [](Engine& engine) {
    std::vector<float> values = {1, 2};
    const TensorView good = tensor_at(values.data(), {2}, "good");
    const TensorView bad = tensor_at(values.data(), {engine.rank() + 1}, "bad");
    EXPECT_EQ(Work().exception(), nullptr);
    Work work = engine.all_reduce_async(good, good);
    work.wait();
    EXPECT_EQ(work.exception(), nullptr);

    Batch batch;
    batch.all_gather(good);
    batch.all_reduce(bad, bad);
    work = engine.run_async(batch);
    while (!work.wait_for(std::chrono::seconds(1))) {
    }
    const std::exception_ptr exception = work.exception();
    ASSERT_NE(exception, nullptr);
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_NE(std::string(error.what()).find("'bad'"), std::string::npos) << error.what();
    }
    EXPECT_THROW(work.wait(), Error);
    // The operations of a handle fail one by one.
    EXPECT_EQ(work.size(), 2U);
    EXPECT_EQ(work.exception(0), nullptr);
    EXPECT_NE(work.exception(1), nullptr);
    EXPECT_THROW(work.exception(2), Error);
    engine.barrier();
  });
}

TEST(Work, HasNoExceptionBeforeItsEnd) {
  run_engines(2, [](Engine& engine) {
    if (engine.rank() == 0) {
      const Work work = engine.barrier_async("later");
      EXPECT_EQ(work.exception(), nullptr);
      engine.barrier();
      work.wait();
    } else {
      engine.barrier();
      engine.barrier("later");
    }
  });
}

}  // namespace
}  // namespace lockstep
