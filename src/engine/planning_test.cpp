// Whole worlds that learn a plan. What counts is that nobody can tell, except by the clock and the number of notices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

Core::OperationPtr submit(Core& core, const TensorView& input, const TensorView& output, ReduceOp op = ReduceOp::sum,
                          double postscale = 1.0) {
  return core.submit_all_reduce({.input = &input, .output = &output, .op = op, .postscale = postscale});
}
Core::OperationPtr submit(Core& core, float* values, std::size_t count, const std::string& name) {
  const TensorView tensor = view(values, count, name);
  return submit(core, tensor, tensor);
}
Core::OperationPtr submit(Core& core, std::vector<float>& values, const std::string& name) {
  return submit(core, values.data(), values.size(), name);
}

std::uint64_t notices_taken(Core& core) {
  return trace::Counters::value_of(core.recorder().counters().snapshot(), "notices");
}

class Plans : public testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  Over over() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  bool planned() const { return over() == Over::shm && size() > 1; }
};

// A tensor with an input and an output, in the heap or outside, and a copy that goes in the ordinary way.
class PlannedTensor {
 public:
  PlannedTensor(Core& core, int number) : number_(number) {
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::i64, DType::f64};
    constexpr std::size_t kElements[] = {0, 1, 7, 1000, 5120, 70'001, 300'000};
    constexpr std::size_t kMostUnderSanitizer = 20'000;
    dtype_ = kTypes[number % 4];
    elements_ = std::min(kElements[number % 7], under_sanitizer() ? kMostUnderSanitizer : kElements[6]);
    op_ = number % 3 == 0 ? ReduceOp::average : ReduceOp::sum;
    bytes_ = elements_ * size_of(dtype_);
    shared_ = number % 2 == 0 ? core.transport().shared() : nullptr;
    input_ = make(own_input_);
    output_ = number % 5 == 0 ? make(own_output_) : input_;
    expected_.resize(bytes_);
  }
  ~PlannedTensor() {
    if (shared_ == nullptr) return;
    shared_->deallocate(input_);
    if (output_ != input_) shared_->deallocate(output_);
  }
  PlannedTensor(const PlannedTensor&) = delete;

  void fill(std::mt19937& random) {
    if (bytes_ == 0) return;  // an empty vector has no memory
    std::vector<std::uint64_t> words(bytes_ / 8 + 1);
    std::uint64_t number = random();
    for (auto& word : words) word = (number += 619) % 1024 * 0x0001'0001'0001'0001ULL;  // no type makes a NaN of it
    std::memcpy(input_, words.data(), bytes_);
    std::memcpy(expected_.data(), words.data(), bytes_);
  }
  int number() const { return number_; }
  Core::OperationPtr start(Core& core) const {
    return submit(core, tensor(input_), tensor(output_), op_, number_ == 1 ? 0.5 : 1.0);
  }
  void expect_same(Core& core) {
    Request request;
    request.kind = Kind::all_reduce;
    request.input = request.output = tensor(expected_.data());
    request.input.name.clear();
    request.op = op_;
    request.postscale = number_ == 1 ? 0.5 : 1.0;
    run(core, request);
    EXPECT_TRUE(bytes_ == 0 || std::memcmp(output_, expected_.data(), bytes_) == 0) << number_;
  }

 private:
  std::byte* make(std::vector<std::byte>& own) {
    if (shared_ != nullptr) return static_cast<std::byte*>(shared_->allocate(bytes_));
    own.resize(bytes_ + 1);
    return own.data();
  }
  TensorView tensor(std::byte* data) const {
    return view(data, elements_, fmt::format("layer{}.weight", number_), dtype_);
  }

  int number_;
  DType dtype_;
  std::size_t elements_;
  std::size_t bytes_;
  ReduceOp op_;
  transport::SharedMemory* shared_;
  std::byte* input_;
  std::byte* output_;
  std::vector<std::byte> own_input_;
  std::vector<std::byte> own_output_;
  std::vector<std::byte> expected_;
};

TEST_P(Plans, GiveTheSameBitsAsTheOrdinaryWay) {
  run_world(over(), size(), [&](Core& core) {
    std::vector<std::unique_ptr<PlannedTensor>> tensors;
    for (int i = 0; i < 30; ++i) tensors.push_back(std::make_unique<PlannedTensor>(core, i));
    std::mt19937 random(static_cast<unsigned>(core.options().rank));
    for (int step = 0; step < (under_sanitizer() ? 4 : 6); ++step) {
      for (auto& tensor : tensors) tensor->fill(random);
      std::shuffle(tensors.begin(), tensors.end(), random);
      run(core, barrier());
      core.begin_step();
      const std::uint64_t before = notices_taken(core);
      std::vector<Core::OperationPtr> operations;
      for (auto& tensor : tensors) operations.push_back(tensor->start(core));
      core.end_step();
      if (planned() && step >= 2) {
        // At most five buckets of 4 MB, and two ends of steps, from each peer.
        EXPECT_LE(notices_taken(core) - before, static_cast<std::uint64_t>((size() - 1) * 7));
      }
      for (auto& operation : operations) EXPECT_TRUE(operation->ended());
      // In one order on all ranks.
      std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a->number() < b->number(); });
      for (auto& tensor : tensors) tensor->expect_same(core);
    }
  });
}

// Tensors 0 to 9 are used by all in every step, so that there is a plan; of 10 to 19 each rank uses some, and from the
// middle on there are also new ones. Now and then a rank waits, or looks, before it has submitted all.
TEST_P(Plans, SurviveChangedSetsAndWaitsAtRandom) {
  for (unsigned seed = 0; seed < (under_sanitizer() ? 2 : 4); ++seed) {
    run_world(over(), size(), [&](Core& core) {
      constexpr std::size_t kTensors = 25;
      const int rank = core.options().rank;
      std::mt19937 mine(seed * 1000 + static_cast<unsigned>(rank));
      for (unsigned step = 0; step < 40; ++step) {
        std::mt19937 common(seed * 100 + step);
        std::vector<float> expected(kTensors, 0.0F);
        std::vector<std::size_t> used;
        const bool all_alike = common() % 2 == 0;
        for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
          for (int peer = 0; peer < size(); ++peer) {
            const bool skipped = common() % 3 == 0;
            if (tensor >= 20 ? step < 20 : tensor >= 10 && !all_alike && skipped) continue;
            expected[tensor] += static_cast<float>(peer + 1);
            if (peer == rank) used.push_back(tensor);
          }
        }
        const unsigned waits = step % 10 == 7 ? common() % 3 : 0;
        std::shuffle(used.begin(), used.end(), mine);
        std::vector<std::vector<float>> values(kTensors);
        core.begin_step();
        for (std::size_t tensor : used) {
          values[tensor].assign(100 + tensor * 50 + (step >= 30 && tensor == 3 ? 1 : 0), static_cast<float>(rank + 1));
          const auto operation = submit(core, values[tensor], fmt::format("t{}", tensor));
          // Rank 0 may wait for nothing that comes later on the others: it only looks.
          if (waits > 0 && mine() % 4 == 0) core.wait(*operation, Core::Clock::now());
        }
        core.end_step();
        for (std::size_t tensor : used) {
          ASSERT_EQ(values[tensor].front(), expected[tensor]) << "step " << step << " tensor " << tensor;
          ASSERT_EQ(values[tensor].back(), expected[tensor]);
        }
      }
    });
  }
}

// Every rank waits for each tensor before it submits the next: no bucket is ever full.
TEST_P(Plans, AProgramThatWaitsInsideItsStepsIsNotHeldUp) {
  run_world(over(), size(), [&](Core& core) {
    for (int step = 0; step < 8; ++step) {
      core.begin_step();
      std::vector<std::vector<float>> values(10, std::vector<float>(1000, 1.0F));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto operation = submit(core, values[i], fmt::format("t{}", i));
        if (step < 3 && i + 1 < values.size()) continue;
        core.wait(*operation);
        EXPECT_EQ(values[i].back(), static_cast<float>(size()));
      }
      core.end_step();
      for (const auto& value : values) EXPECT_EQ(value.front(), static_cast<float>(size()));
    }
  });
}

// In a bucket the small tensor comes first, because it lies first. A later plan must not take it for the next in turn,
// and put it into the bucket before, which still has room for it: every wait would then come before that one is full.
TEST(PlansOfMemory, APlanThatFollowsAnotherCutsTheOrderOfSubmission) {
  constexpr std::size_t kMegabyte = 1 << 20, kSmall = 4096;
  run_world(Over::shm, 2, [&](Core& core) {
    transport::SharedMemory& shared = *core.transport().shared();
    auto* const block = static_cast<std::byte*>(shared.allocate(7 * kMegabyte));
    std::fill_n(block, 7 * kMegabyte, std::byte{0});
    const auto start = [&](std::size_t megabyte, std::size_t bytes, const char* name) {
      return submit(core, reinterpret_cast<float*>(block + megabyte * kMegabyte), bytes / sizeof(float), name);
    };
    constexpr int kSteps = 12, kSettled = 6;
    std::uint64_t before = 0;
    for (int step = 0; step < kSteps; ++step) {
      run(core, barrier());
      if (step == kSettled) before = notices_taken(core);
      core.begin_step();
      core.wait(*start(3, 3 * kMegabyte, "first"));
      start(1, 2 * kMegabyte, "second");
      start(0, kSmall, "small");
      if (step >= 3) start(6, kSmall, "added");  // makes another plan
      core.end_step();
    }
    // Of each step two buckets and the end, which may be taken in the step after.
    EXPECT_LE(notices_taken(core) - before, 3U * (kSteps - kSettled) + 1);
    shared.deallocate(block);
  });
}

// Rank 0 waits in the middle for something that the others submit only after they have the first tensor: without a
// plan that works, so it must work with one.
TEST_P(Plans, ABucketHeldOpenByAWaitElsewhereIsDissolved) {
  run_world(over(), size(), [&](Core& core) {
    for (int step = 0; step < 6; ++step) {
      core.begin_step();
      std::vector<float> first(1000, 1.0F), second(1000, 1.0F);
      float loss = 1.0F;
      Core::OperationPtr awaited = submit(core, first, "first");
      if (core.options().rank == 0) {
        run(core, all_reduce(&loss, 1, "loss"));
        submit(core, second, "second");
      } else {
        submit(core, second, "second");
        core.wait(*awaited);
        run(core, all_reduce(&loss, 1, "loss"));
      }
      core.end_step();
      EXPECT_EQ(first.back() + second.back() + loss, 3.0F * static_cast<float>(size()));
    }
  });
}

TEST_P(Plans, DisagreementAboutAPlannedTensorIsAnErrorOnAllRanks) {
  if (size() == 1) return;
  run_world(over(), size(), [&](Core& core) {
    for (int step = 0; step < 8; ++step) {
      const bool wrong = step == 4 && core.options().rank == size() - 1;
      std::vector<float> first(1000, 1.0F), second(wrong ? 500 : 1000, 1.0F), third(1000, 1.0F);
      core.begin_step();
      submit(core, first, "first");
      const auto operation = submit(core, second, "second");
      submit(core, third, "third");
      if (step == 4) {
        EXPECT_THROW(core.end_step(), Error);
        ASSERT_TRUE(operation->error);
        EXPECT_EQ(operation->error->code(), ErrorCode::mismatch);
        EXPECT_NE(std::string(operation->error->what()).find("[500]"), std::string::npos) << operation->error->what();
      } else {
        core.end_step();
        EXPECT_EQ(second.back(), static_cast<float>(size()));
      }
      EXPECT_EQ(first.back() + third.back(), 2.0F * static_cast<float>(size()));
    }
  });
}

TEST_P(Plans, ANameIsUsedTwiceInAStepOnlyOneAfterTheOther) {
  run_world(over(), size(), [&](Core& core) {
    for (int step = 0; step < 6; ++step) {
      std::vector<float> first(1000, 1.0F), second(1000, 2.0F), again(1000, 3.0F);
      core.begin_step();
      const auto one = submit(core, first, "first");
      if (planned() && step > 2) {
        EXPECT_THROW(submit(core, first, "first"), Error);
        EXPECT_THROW(core.submit(all_reduce(again.data(), 10, "first"), true), Error);
      }
      submit(core, second, "second");
      core.wait(*one);
      submit(core, again, "first");
      core.end_step();
      EXPECT_EQ(first.back() * 6.0F, 6.0F * static_cast<float>(size()));
      EXPECT_EQ(second.back(), 2.0F * static_cast<float>(size()));
      EXPECT_EQ(again.back(), 3.0F * static_cast<float>(size()));
    }
  });
}

TEST_P(Plans, AreLearnedAnewAfterAJoin) {
  run_world(over(), size(), [&](Core& core) {
    const int rank = core.options().rank;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step < 4 + rank; ++step) {
        float expected = 0;
        for (int peer = std::max(0, step - 3); peer < size(); ++peer) expected += static_cast<float>(peer + 1);
        std::vector<std::vector<float>> values(5, std::vector<float>(300, static_cast<float>(rank + 1)));
        core.begin_step();
        for (std::size_t i = 0; i < values.size(); ++i) submit(core, values[i], fmt::format("t{}", i));
        core.end_step();
        for (const auto& value : values) ASSERT_EQ(value.back(), expected);
      }
      const auto join = core.submit({.kind = Kind::join, .input = {}, .output = {}}, false);
      core.wait(*join);
      Core::check(*join);
    }
  });
}

TEST_P(Plans, AnAbortEndsWhatIsInABucket) {
  if (!planned()) return;  // without a bucket it may be over before the abort
  for (bool full : {false, true}) {
    run_world(over(), size(), [&](Core& core) {
      std::vector<float> first(1000, 1.0F), second(1000, 1.0F);
      for (int step = 0; step < 4; ++step) {
        core.begin_step();
        submit(core, first, "first");
        submit(core, second, "second");
        core.end_step();
      }
      Core::OperationPtr pending;
      try {
        run(core, barrier());
        core.begin_step();
        pending = submit(core, first, "first");
        if (core.options().rank == 0) {
          core.abort("enough");
        } else if (full) {
          submit(core, second, "second");
        }
        core.end_step();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::aborted) << error.what();
      }
      if (!pending) return;  // it was told before
      EXPECT_TRUE(pending->ended());
      EXPECT_THROW(Core::check(*pending), Error);
    });
  }
}

TEST_P(Plans, StoppingTheEngineEndsWhatIsInABucket) {
  run_world(over(), size(), [&](Core& core) {
    std::vector<float> first(1000, 1.0F), second(1000, 1.0F);
    for (int step = 0; step < 4; ++step) {
      core.begin_step();
      submit(core, first, "first");
      submit(core, second, "second");
      core.end_step();
    }
    run(core, barrier());
    core.begin_step();
    const auto pending = submit(core, first, "first");
    core.stop();
    EXPECT_TRUE(pending->ended());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Plans,
                         testing::Values(std::tuple(Over::shm, 1), std::tuple(Over::shm, 2), std::tuple(Over::shm, 3),
                                         std::tuple(Over::shm, 5), std::tuple(Over::memory, 3)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lockstep::engine
