#include <gtest/gtest.h>

#include "engine/engines_test.hpp"

namespace lockstep {
namespace {

using Floats = std::vector<float>;

// One of every kind, of two ranks that give 1 and 2, 3 and 4.
TEST(Batch, OperationsOfEveryKindAreOneUnitOfWork) {
  run_engines(2, [](Engine& engine) {
    const int rank = engine.rank(), other = 1 - rank;
    const auto own = static_cast<float>(2 * rank + 1);
    Floats given = {own, own + 1}, sum(2), reduced(2), copied = given, got(2), rows(4);
    Floats scattered = rank == 0 ? Floats{5, 6, 7} : Floats{};
    Batch batch;
    batch.all_reduce(tensor_at(given.data(), {2}, "sum"), tensor_at(sum.data(), {2}, "sum"));
    batch.reduce(tensor_at(given.data(), {2}, "max"), tensor_at(reduced.data(), {2}, "max"), 1, {.op = ReduceOp::max});
    batch.reduce_scatter(tensor_at(given.data(), {2}, "parts"));
    batch.broadcast(tensor_at(copied.data(), {2}, "copied"), 1);
    batch.all_gather(tensor_at(given.data(), {2}, "rows"), tensor_at(rows.data(), {4}));
    batch.gather(tensor_at(given.data(), {1 + rank}, "some"), 0);
    batch.scatter(tensor_at(scattered.data(), {rank == 0 ? 3 : 0}, "cut"), 0);
    batch.all_to_all(tensor_at(given.data(), {2}));
    batch.all_to_all(tensor_at(given.data(), {2}, "uneven"),
                     rank == 0 ? std::vector<std::int64_t>{0, 2} : std::vector<std::int64_t>{1, 1});
    batch.send(tensor_at(given.data(), {1}), other, 7);
    batch.send(tensor_at(given.data() + 1, {1}), other, 7);
    batch.receive(tensor_at(got.data(), {1}), other, 7);
    batch.receive(tensor_at(got.data() + 1, {1}), other, 7);
    batch.barrier("last");
    ASSERT_EQ(batch.size(), 14U);

    for (int turn = 0; turn < 2; ++turn) {
      const std::vector<Result> results = engine.run(batch);
      ASSERT_EQ(results.size(), 14U);
      EXPECT_EQ(sum, (Floats{4, 6}));
      EXPECT_EQ(reduced, rank == 1 ? (Floats{3, 4}) : Floats(2));
      EXPECT_EQ(floats_of(results[2]), Floats{rank == 0 ? 4.0F : 6.0F});
      EXPECT_EQ(copied, (Floats{3, 4}));
      EXPECT_EQ(rows, (Floats{1, 2, 3, 4}));
      EXPECT_EQ(floats_of(results[5]), rank == 0 ? (Floats{1, 3, 4}) : Floats());
      EXPECT_EQ(floats_of(results[6]), rank == 0 ? (Floats{5, 6}) : Floats{7});
      EXPECT_EQ(floats_of(results[7]), rank == 0 ? (Floats{1, 3}) : (Floats{2, 4}));
      EXPECT_EQ(floats_of(results[8]), rank == 0 ? Floats{3} : (Floats{1, 2, 4}));
      EXPECT_EQ(results[8].received, (rank == 0 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{2, 1}));
      EXPECT_EQ(got, rank == 0 ? (Floats{3, 4}) : (Floats{1, 2}));
    }
  });
}

TEST(Batch, IsRefusedAsAWhole) {
  run_engines(2, [](Engine& engine) {
    Floats values = {1, 2};
    const TensorView named = tensor_at(values.data(), {2}, "x");
    Batch twice, rootless, uneven;
    twice.all_gather(named);
    twice.broadcast(named, 0);
    rootless.all_gather(named);
    rootless.broadcast(tensor_at(values.data(), {2}, "y"), 2);
    uneven.all_gather(named);
    uneven.all_to_all(tensor_at(values.data(), {1}));
    for (const Batch* batch : {&twice, &rootless, &uneven}) {
      try {
        engine.run_async(*batch);
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      }
    }
    // Were the first of them under way, its name would be refused.
    EXPECT_EQ(floats_of(engine.all_gather(named)), (Floats{1, 2, 1, 2}));
    EXPECT_TRUE(engine.run({}).empty());
  });
}

TEST(Batch, EveryEpilogueLearnsToWhichOperationASliceBelongs) {
  run_engines(2, [](Engine& engine) {
    Floats first(100, 1.0F), second(100, 1.0F);
    const Epilogue add_index = [](const ReducedSlice& slice) {
      for (std::size_t i = 0; i < slice.count; ++i)
        static_cast<float*>(slice.values)[i] += 10.0F * static_cast<float>(slice.tensor);
    };
    Batch batch;
    batch.barrier();
    batch.all_reduce(tensor_at(first.data(), {100}), tensor_at(first.data(), {100}), {.epilogue = add_index});
    batch.all_reduce(tensor_at(second.data(), {100}), tensor_at(second.data(), {100}), {.epilogue = add_index});
    engine.run(batch);
    EXPECT_EQ(first, Floats(100, 12.0F));
    EXPECT_EQ(second, Floats(100, 22.0F));
  });
}

}  // namespace
}  // namespace lockstep
