#include <gtest/gtest.h>

#include <string>

#include "c_api/c_engines_test.hpp"

namespace {

TEST(CApi, AFailureIsToldForEachOperationOfAHandle) {
  run_c_engines(2, 5, [](ls_engine* engine, int rank) {
    float values[2] = {};
    const int64_t one[] = {1}, shape[] = {1 + rank};
    const ls_tensor good = tensor_of(values, one, "good"), bad = tensor_of(values + 1, shape, "bad");
    const ls_operation operations[] = {operation_of(LS_BROADCAST, &good), operation_of(LS_BROADCAST, &bad)};
    ls_work* work = nullptr;
    ASSERT_EQ(ls_submit_together(engine, operations, 2, &work), LS_OK) << ls_last_error();
    EXPECT_EQ(ls_work_wait(work, -1), LS_MISMATCH);
    EXPECT_EQ(ls_work_error(work, 0), LS_OK);
    EXPECT_EQ(ls_work_error(work, 2), LS_INVALID_ARGUMENT);
    EXPECT_EQ(ls_work_error(work, 1), LS_MISMATCH);
    EXPECT_NE(std::string(ls_last_error()).find("'bad'"), std::string::npos) << ls_last_error();
    ls_work_free(work);

    if (rank == 0) {
      EXPECT_EQ(ls_barrier(engine, "later", nullptr, &work), LS_OK);
      EXPECT_EQ(ls_work_error(work, 0), LS_TIMEOUT);
    }
    EXPECT_EQ(ls_barrier(engine, nullptr, nullptr, nullptr), LS_OK);
    if (rank == 1) {
      EXPECT_EQ(ls_barrier(engine, "later", nullptr, &work), LS_OK);
    }
    EXPECT_EQ(ls_work_wait(work, -1), LS_OK);
    ls_work_free(work);
  });
}

}  // namespace
