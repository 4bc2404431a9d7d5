// Updates of many tensors where ranks exchange messages: the bits of one host, with few messages.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/half.hpp"
#include "engine/packing.hpp"
#include "engine/world_test.hpp"
#include "lockstep/optimizer.hpp"

namespace lockstep::engine {
namespace {

// Larger and smaller than a line, a chunk of a slice and what is packed; none that divides by the ranks.
const std::vector<std::size_t> kModel = {1, 7, 33, 64, 1'001, 40'003, 20'011, 31, 200'003, 5};

template <class T>
T model_number(std::size_t i, int rank, int step) {
  const auto seed = static_cast<std::uint32_t>(i * 2654435761U) + static_cast<std::uint32_t>(rank * 97 + step * 31);
  const float value = 1.0F / static_cast<float>(1 + (seed >> 8) % 1009) * ((seed & 256U) != 0 ? 1.0F : -1.0F);
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return bf16_from_f32(value);
  }
}

// One rank's weights, gradients and its part of the state.
template <class T>
class Model {
 public:
  Model(const std::vector<std::size_t>& sizes, const OptimizerOptions& options, std::size_t index, std::size_t ranks)
      : options_(options) {
    const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
    for (std::size_t size : sizes) {
      std::vector<T> values(size);
      for (std::size_t i = 0; i < size; ++i) values[i] = model_number<T>(i, 1000, 0);
      weights_.push_back(std::move(values));
      gradients_.emplace_back(size);
      const ElementRange mine = owned_slice(size, dtype, index, ranks);
      OptimizedTensor tensor{.weights = weights_.back().data(), .dtype = dtype, .first = mine.offset};
      for (std::size_t i = 0; i < optimizer_state_count(options); ++i) {
        state_.emplace_back(mine.count);
        tensor.state[i] = state_.back().data();
      }
      tensors_.push_back(tensor);
    }
  }

  std::vector<Request> step(int rank, int step) {
    const Epilogue update = update_epilogue(options_, step, tensors_);
    std::vector<Request> requests;
    for (std::size_t t = 0; t < weights_.size(); ++t) {
      for (std::size_t i = 0; i < gradients_[t].size(); ++i) gradients_[t][i] = model_number<T>(i + t, rank, step);
      const std::string name = "tensor" + std::to_string(t);
      Request request = all_reduce(nullptr, 0, name, ReduceOp::average);
      request.input = view(gradients_[t].data(), gradients_[t].size(), name, tensors_[t].dtype);
      request.output = view(weights_[t].data(), weights_[t].size(), name, tensors_[t].dtype);
      request.epilogue = [update, t](ReducedSlice slice) {
        slice.tensor = t;
        update(slice);
      };
      requests.push_back(std::move(request));
    }
    return requests;
  }

  const std::vector<std::vector<T>>& weights() const { return weights_; }

 private:
  OptimizerOptions options_;
  std::vector<std::vector<T>> weights_, gradients_;
  std::vector<std::vector<float>> state_;
  std::vector<OptimizedTensor> tensors_;
};

void wait_for(Core& core, const std::vector<Core::OperationPtr>& operations) {
  for (const auto& operation : operations) core.wait(*operation);
  for (const auto& operation : operations) Core::check(*operation);
}

void make_update(Core& core, std::vector<Request> requests) {
  wait_for(core, core.submit_packed(std::move(requests), /*background=*/false));
}

// What every rank has in the end.
template <class T>
std::vector<std::vector<std::vector<T>>> trained_over(Over over, int size, const OptimizerOptions& options, int steps) {
  std::vector<std::vector<std::vector<T>>> results(static_cast<std::size_t>(size));
  run_world(over, size, [&](Core& core) {
    const int rank = core.options().rank;
    Model<T> model(kModel, options, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    for (int step = 1; step <= steps; ++step) make_update(core, model.step(rank, step));
    results[static_cast<std::size_t>(rank)] = model.weights();
  });
  return results;
}

const std::vector<OptimizerOptions> kOptimizers = {
    {.kind = OptimizerKind::sgd, .learning_rate = 0.1, .momentum = 0.9},
    {.kind = OptimizerKind::adam, .learning_rate = 0.01},
    {.kind = OptimizerKind::adamw, .learning_rate = 0.01, .weight_decay = 0.1},
};

class PackedUpdate : public testing::TestWithParam<std::tuple<Over, int>> {};

TEST_P(PackedUpdate, GivesTheWeightsOfOneHost) {
  const auto [over, size] = GetParam();
  const int steps = under_sanitizer() ? 1 : 4;
  for (const auto& options : kOptimizers) {
    const auto expected = trained_over<float>(Over::shm, size, options, steps).front();
    for (const auto& weights : trained_over<float>(over, size, options, steps)) EXPECT_TRUE(weights == expected);
    const auto rounded = trained_over<std::uint16_t>(Over::shm, size, options, steps).front();
    for (const auto& weights : trained_over<std::uint16_t>(over, size, options, steps)) EXPECT_TRUE(weights == rounded);
    if (under_sanitizer()) break;
  }
}

TEST_P(PackedUpdate, OfManySmallTensorsTakesOneNotice) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    const std::vector<std::size_t> sizes(300, 70);
    Model<float> model(sizes, kOptimizers[1], static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    run(core, barrier());
    const auto operations = core.submit_packed(model.step(rank, 1), /*background=*/false);
    EXPECT_EQ(operations.size(), 1U);
    wait_for(core, operations);
    run(core, barrier());
  });
}

TEST_P(PackedUpdate, RanksThatMeanOtherTensorsAreTold) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    Model<float> model({10, 20, 30}, kOptimizers[0], static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    auto requests = model.step(rank, 1);
    if (rank == size - 1) requests[1].input.name = requests[1].output.name = "another";
    try {
      make_update(core, std::move(requests));
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_NE(std::string(error.what()).find("3 tensors in one"), std::string::npos) << error.what();
    }
    run(core, barrier());
  });
}

// In a pack as alone: added up by place in memory, tensors that lie otherwise would mix their elements.
TEST_P(PackedUpdate, RanksWhoseTensorsLieOtherwiseAreTold) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    Model<float> model({10, 20, 30}, kOptimizers[0], static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    auto requests = model.step(rank, 1);
    for (TensorView* tensor : {&requests[1].input, &requests[1].output}) {
      tensor->shape = {4, 5};
      if (rank == size - 1) tensor->strides = {1, 4};
    }
    try {
      make_update(core, std::move(requests));
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    }
    run(core, barrier());
  });
}

TEST_P(PackedUpdate, RefusesWhatEachCallWouldRefuse) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&](Core& core) {
    std::vector<float> values(100, 1.0F);
    auto with_epilogue = [&](float* data, const char* name) {
      Request request = all_reduce(data, 50, name);
      request.epilogue = [](const ReducedSlice&) {};
      return request;
    };
    std::vector<Request> twice = {with_epilogue(values.data(), "a"), with_epilogue(values.data() + 50, "a")};
    EXPECT_THROW(core.submit_packed(twice, false), Error);
    std::vector<Request> nowhere = {with_epilogue(values.data(), "a"), with_epilogue(nullptr, "b")};
    EXPECT_THROW(core.submit_packed(nowhere, false), Error);
    make_update(core, {with_epilogue(values.data(), "a"), with_epilogue(values.data() + 50, "b")});
  });
}

TEST_P(PackedUpdate, AnEpilogueThatThrowsAbortsTheJobOnAllRanks) {
  const auto [over, size] = GetParam();
  run_world(over, size, [&, size = size](Core& core) {
    const int rank = core.options().rank;
    Model<float> model({400, 500, 600}, kOptimizers[0], static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
    auto requests = model.step(rank, 1);
    if (rank == size - 1) requests[2].epilogue = [](const ReducedSlice&) { throw std::runtime_error("no such step"); };
    try {
      make_update(core, std::move(requests));
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_NE(std::string(error.what()).find("no such step"), std::string::npos) << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Memory, PackedUpdate, testing::Combine(testing::Values(Over::memory), testing::Values(2, 3)),
                         [](const auto& test) { return std::to_string(std::get<1>(test.param)); });
INSTANTIATE_TEST_SUITE_P(OverTcp, PackedUpdate, testing::ValuesIn(tcp_worlds({3}, {2, 4, 5})), [](const auto& test) {
  return std::string(name_of(std::get<0>(test.param))) + std::to_string(std::get<1>(test.param));
});

// A rank that has joined owns nothing: the others own and update all of it.
TEST(PackedUpdateAfterJoin, IsCutAmongThoseThatAreLeft) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const auto alone = trained_over<float>(Over::shm, 3, kOptimizers[0], 1).front();
  auto transports = transport::make_tcp_hosts(hosts);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::vector<float>>> results(4);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Core core(world_options(rank, 4), std::move(transports[static_cast<std::size_t>(rank)]));
      if (rank != 1) {
        const int place = rank == 0 ? 0 : rank - 1;
        Model<float> model(kModel, kOptimizers[0], static_cast<std::size_t>(place), 3);
        auto requests = model.step(place, 1);
        for (Request& request : requests) request.by_contributors = true;
        make_update(core, std::move(requests));
        results[static_cast<std::size_t>(rank)] = model.weights();
      }
      Request join;
      join.kind = collective::Kind::join;
      run(core, std::move(join));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(results[0] == results[2] && results[2] == results[3]);
  // Ranks 0, 2 and 3 pair up as 0 and (2, 3); three ranks by themselves as (0, 1) and 2. So not all bits are the same.
  for (std::size_t t = 0; t < alone.size(); ++t) {
    for (std::size_t i = 0; i < alone[t].size(); ++i) ASSERT_NEAR(results[0][t][i], alone[t][i], 1e-6) << t << ' ' << i;
  }
}

}  // namespace
}  // namespace lockstep::engine
