// Optimizers: the right numbers for every kind and option, the same bits however the work is shared out.
#include "lockstep/optimizer.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>

#include "base/half.hpp"
#include "lockstep/error.hpp"
#include "optim/every_option_test.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kElements = kOptimizedElements;

// What the papers say, in f64, one element at a time.
struct Reference {
  double weight;
  std::array<double, kMostOptimizerStates> state{};

  void step(const OptimizerOptions& o, std::int64_t number, double gradient) {
    double g = o.maximize ? -gradient : gradient;
    const bool apart = o.kind == OptimizerKind::adamw || o.kind == OptimizerKind::lion;
    if (!apart) g += o.weight_decay * weight;
    if (apart) weight -= o.learning_rate * o.weight_decay * weight;
    switch (o.kind) {
      case OptimizerKind::sgd: {
        if (o.momentum == 0.0) {
          weight -= o.learning_rate * g;
          return;
        }
        state[0] = number == 1 ? g : o.momentum * state[0] + (1.0 - o.dampening) * g;
        weight -= o.learning_rate * (o.nesterov ? g + o.momentum * state[0] : state[0]);
        return;
      }
      case OptimizerKind::adam:
      case OptimizerKind::adamw: {
        state[0] = o.beta1 * state[0] + (1.0 - o.beta1) * g;
        state[1] = o.beta2 * state[1] + (1.0 - o.beta2) * g * g;
        state[2] = std::max(state[2], state[1]);
        const double mean = state[0] / (1.0 - std::pow(o.beta1, number));
        const double second = (o.amsgrad ? state[2] : state[1]) / (1.0 - std::pow(o.beta2, number));
        weight -= o.learning_rate * mean / (std::sqrt(second) + o.epsilon);
        return;
      }
      case OptimizerKind::adagrad:
        state[0] += g * g;
        weight -= o.learning_rate / (1.0 + static_cast<double>(number - 1) * o.learning_rate_decay) * g /
                  (std::sqrt(state[0]) + o.epsilon);
        return;
      case OptimizerKind::rmsprop: {
        double& mean = state[o.momentum != 0.0 ? 2 : 1];
        state[0] = o.smoothing * state[0] + (1.0 - o.smoothing) * g * g;
        double spread = state[0];
        if (o.centered) {
          mean = o.smoothing * mean + (1.0 - o.smoothing) * g;
          spread -= mean * mean;
        }
        const double scaled = g / (std::sqrt(spread) + o.epsilon);
        if (o.momentum == 0.0) {
          weight -= o.learning_rate * scaled;
          return;
        }
        state[1] = o.momentum * state[1] + scaled;
        weight -= o.learning_rate * state[1];
        return;
      }
      case OptimizerKind::lion: {
        const double direction = o.beta1 * state[0] + (1.0 - o.beta1) * g;
        state[0] = o.beta2 * state[0] + (1.0 - o.beta2) * g;
        weight -= o.learning_rate * (direction > 0.0 ? 1.0 : direction < 0.0 ? -1.0 : 0.0);
        return;
      }
    }
  }
};

// Weights and their state in one process.
template <class T>
struct Local {
  Local(const OptimizerOptions& of, std::vector<T> from) : options(of), weights(std::move(from)) {
    state.assign(optimizer_state_count(of), std::vector<T>(weights.size(), T(0)));
  }

  void step(std::int64_t number, std::vector<T> gradient) {
    OptimizedTensor tensor{.weights = weights.data(), .dtype = sizeof(T) == 4 ? DType::f32 : DType::f64};
    for (std::size_t i = 0; i < state.size(); ++i) tensor.state[i] = state[i].data();
    update_weights(options, number, tensor, 0, weights.size(), gradient.data());
    weights = std::move(gradient);
  }

  OptimizerOptions options;
  std::vector<T> weights;
  std::vector<std::vector<T>> state;
};

TEST(Optimizer, StepsAsThePapersSay) {
  for (const auto& options : every_option()) {
    Local<double> precise(options, numbers<double>(kElements, 1));
    Local<float> single(options, numbers<float>(kElements, 1));
    std::vector<Reference> expected;
    for (double weight : precise.weights) expected.push_back({weight});
    for (std::int64_t step = 1; step <= 5; ++step) {
      const auto salt = static_cast<std::uint64_t>(step) + 10;
      precise.step(step, numbers<double>(kElements, salt));
      single.step(step, numbers<float>(kElements, salt));
      for (std::size_t i = 0; i < kElements; ++i) expected[i].step(options, step, double{number_at(i, salt)});
    }
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_NEAR(precise.weights[i], expected[i].weight, 1e-11) << text_of(options) << ", element " << i;
      ASSERT_NEAR(single.weights[i], expected[i].weight, 1e-4) << text_of(options) << ", element " << i;
    }
  }
}

TEST(Optimizer, HasTheSameBitsOnEveryInstructionSet) {
  for (const auto& options : every_option()) {
    std::vector<float> expected;
    for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      Local<float> weights(options, numbers<float>(kElements, 1));
      for (std::int64_t step = 1; step <= 3; ++step) {
        weights.step(step, numbers<float>(kElements, static_cast<std::uint64_t>(step) + 10));
      }
      if (expected.empty()) expected = weights.weights;
      EXPECT_EQ(weights.weights, expected) << text_of(options) << " on " << hwy::TargetName(target);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST(Optimizer, RoundsHalfPrecisionOnceAndMayKeepACopy) {
  const OptimizerOptions options{.kind = OptimizerKind::sgd, .learning_rate = 0.25};
  for (DType dtype : {DType::f16, DType::bf16}) {
    auto narrow = [&](float v) { return dtype == DType::f16 ? f16_from_f32(v) : bf16_from_f32(v); };
    auto widen = [&](std::uint16_t v) { return dtype == DType::f16 ? f32_from_f16(v) : f32_from_bf16(v); };
    std::vector<std::uint16_t> weights(kElements), values(kElements);
    std::vector<float> master(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      weights[i] = narrow(number_at(i, 1));
      master[i] = widen(weights[i]);
    }
    auto updated = [&](float* copy) {
      for (std::size_t i = 0; i < kElements; ++i) values[i] = narrow(0.001F * number_at(i, 2));
      const OptimizedTensor tensor{.weights = weights.data(), .dtype = dtype, .master = copy};
      update_weights(options, 1, tensor, 0, kElements, values.data());
      return values;
    };
    const auto once = updated(nullptr);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float gradient = widen(narrow(0.001F * number_at(i, 2)));
      ASSERT_EQ(once[i], narrow(widen(weights[i]) - 0.25F * gradient)) << i;
    }
    std::vector<float> exact = master;
    for (int step = 0; step < 50; ++step) {
      updated(master.data());
      for (std::size_t i = 0; i < kElements; ++i) exact[i] -= 0.25F * widen(narrow(0.001F * number_at(i, 2)));
    }
    EXPECT_EQ(master, exact) << "what 16 bits would have lost is kept";
    for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(values[i], narrow(exact[i])) << i;
  }
}

TEST(Optimizer, RefusesWhatMakesNoSense) {
  std::vector<float> weights(4), values(4), state(4);
  const OptimizedTensor bare{.weights = weights.data()};
  auto message = [&](const OptimizerOptions& options, std::int64_t step, const OptimizedTensor& tensor) -> std::string {
    try {
      update_weights(options, step, tensor, 0, 4, values.data());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_NE(message({.learning_rate = infinity}, 1, bare).find("learning_rate is inf"), std::string::npos);
  EXPECT_NE(message({.momentum = -1.0}, 1, bare).find("momentum is -1"), std::string::npos);
  EXPECT_NE(message({.beta1 = 1.0}, 1, bare).find("beta1 is 1"), std::string::npos);
  EXPECT_NE(message({.nesterov = true}, 1, bare).find("nesterov needs a momentum"), std::string::npos);
  EXPECT_NE(message({.kind = static_cast<OptimizerKind>(9)}, 1, bare).find("no kind 9"), std::string::npos);
  EXPECT_NE(message({}, 0, bare).find("counted from 1"), std::string::npos);
  EXPECT_NE(message({.kind = OptimizerKind::adam}, 1, bare).find("no memory for the state 'exp_avg'"),
            std::string::npos);
  EXPECT_NE(message({}, 1, {.weights = weights.data(), .dtype = DType::i32}).find("real floats"), std::string::npos);
  EXPECT_NE(message({}, 1, {.weights = weights.data(), .master = state.data()}).find("16-bit"), std::string::npos);
  EXPECT_NE(message({}, 1, {.weights = weights.data(), .first = 2}).find("before the first"), std::string::npos);
  EXPECT_EQ(message({}, 1, bare), "");
}

}  // namespace
}  // namespace lockstep
