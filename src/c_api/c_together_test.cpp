#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "c_api/c_engines_test.hpp"

namespace {

TEST(CApi, OperationsOfEveryKindAreSubmittedTogether) {
  run_c_engines(2, 4, [](ls_engine* engine, int rank) {
    const int64_t two[] = {2}, one[] = {1}, four[] = {4};
    const auto own = static_cast<float>(2 * rank + 1);
    float given[] = {own, own + 1}, sum[2] = {}, copied[] = {own}, rows[4] = {}, got[1] = {};
    const ls_tensor input = tensor_of(given, two, nullptr), summed = tensor_of(sum, two, nullptr);
    const ls_tensor copy = tensor_of(copied, one, nullptr), all = tensor_of(rows, four, nullptr);
    const ls_tensor sent = tensor_of(given, one, nullptr), received = tensor_of(got, one, nullptr);
    const ls_tensor name = tensor_of(nullptr, one, "end");
    const int64_t splits[] = {2 - rank, rank};

    std::vector<ls_operation> operations = {
        operation_of(LS_ALL_REDUCE, &input, &summed),
        operation_of(LS_REDUCE, &input, &summed),
        operation_of(LS_REDUCE_SCATTER, &input),
        operation_of(LS_BROADCAST, &copy),
        operation_of(LS_ALL_GATHER, &input, &all),
        operation_of(LS_GATHER, &input),
        operation_of(LS_SCATTER, &input),
        operation_of(LS_ALL_TO_ALL, &input),
        operation_of(LS_SEND, &sent),
        operation_of(LS_RECEIVE, &received),
        operation_of(LS_BARRIER, &name),
    };
    operations[1].root = rank;
    operations[1].output = nullptr;  // refused, with all the others: the root needs one
    ls_work* work = nullptr;
    EXPECT_EQ(ls_submit_together(engine, operations.data(), operations.size(), &work), LS_INVALID_ARGUMENT);
    EXPECT_EQ(work, nullptr);

    float reduced[2] = {};
    const ls_tensor largest = tensor_of(reduced, two, nullptr);
    ls_reduce_options maximum{};
    maximum.struct_size = sizeof maximum;
    maximum.op = LS_MAX;
    maximum.prescale = maximum.postscale = 1.0;
    operations[1].output = &largest;
    operations[1].root = 1;
    operations[1].options = &maximum;
    operations[7].splits = splits;
    operations[7].split_count = 2;
    operations[8].root = operations[9].root = 1 - rank;
    operations[8].tag = operations[9].tag = 3;
    ASSERT_EQ(ls_submit_together(engine, operations.data(), operations.size(), &work), LS_OK) << ls_last_error();
    EXPECT_EQ(ls_work_wait(work, -1), LS_OK) << ls_last_error();
    auto result_of = [&](size_t index) {
      ls_result result{};
      result.struct_size = sizeof result;
      EXPECT_EQ(ls_work_result(work, index, &result), LS_OK) << ls_last_error();
      const auto* values = static_cast<const float*>(result.data);
      return std::vector<float>(values, values + result.shape[0]);
    };
    using Floats = std::vector<float>;
    EXPECT_EQ(sum[1], 6.0F);
    EXPECT_EQ(reduced[0], rank == 1 ? 3.0F : 0.0F);
    EXPECT_EQ(result_of(2), Floats{rank == 0 ? 4.0F : 6.0F});
    EXPECT_EQ(copied[0], 1.0F);
    EXPECT_EQ(rows[3], 4.0F);
    EXPECT_EQ(result_of(5), rank == 0 ? (Floats{1, 2, 3, 4}) : Floats());
    EXPECT_EQ(result_of(6), Floats{rank == 0 ? 1.0F : 2.0F});
    EXPECT_EQ(result_of(7), rank == 0 ? (Floats{1, 2, 3}) : Floats{4});
    EXPECT_EQ(got[0], rank == 0 ? 3.0F : 1.0F);
    ls_work_free(work);

    EXPECT_EQ(ls_submit_together(engine, operations.data(), 1, nullptr), LS_OK) << ls_last_error();
    EXPECT_EQ(ls_submit_together(engine, nullptr, 0, nullptr), LS_OK);
    EXPECT_EQ(ls_submit_together(engine, nullptr, 1, nullptr), LS_INVALID_ARGUMENT);
    operations[0].kind = 99;
    EXPECT_EQ(ls_submit_together(engine, operations.data(), 1, nullptr), LS_INVALID_ARGUMENT);
    EXPECT_EQ(ls_barrier(engine, nullptr, nullptr, nullptr), LS_OK);
  });
}

}  // namespace
