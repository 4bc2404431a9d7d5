// All-reduce of tensors outside the heap, which their owners pass on window by window.
#include <gtest/gtest.h>

#include <complex>
#include <numeric>

#include "collective/relay_pass.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using collective::kRelayWindow;

class Relay : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

// Small whole numbers, so that every type holds every sum.
template <class T>
T value_of(int rank, std::size_t i) {
  return static_cast<T>(static_cast<int>(i % 5) + rank);
}

template <class T>
T sum_of(int size, std::size_t i) {
  return static_cast<T>(size * static_cast<int>(i % 5) + size * (size - 1) / 2);
}

template <class T>
Request reduction_of(std::vector<T>& input, std::vector<T>& output, DType dtype, const std::string& name) {
  return {.kind = collective::Kind::all_reduce,
          .input = view(input.data(), input.size(), name, dtype),
          .output = view(output.data(), output.size(), name, dtype)};
}

template <class T>
void reduce_and_check(Core& core, std::size_t elements, DType dtype, const std::string& name = {}) {
  const int rank = core.options().rank, size = core.options().size;
  std::vector<T> input(elements), output(elements);
  for (std::size_t i = 0; i < elements; ++i) input[i] = value_of<T>(rank, i);
  run(core, reduction_of(input, output, dtype, name));
  for (std::size_t i = 0; i < elements; ++i) {
    ASSERT_EQ(output[i], sum_of<T>(size, i)) << i;
    ASSERT_EQ(input[i], value_of<T>(rank, i)) << i;
  }
  run(core, reduction_of(input, input, dtype, name));
  ASSERT_EQ(input, output);
}

// With a name an operation goes the ordinary way, without one it takes the short cut.
TEST_P(Relay, SumsTensorsThatEndAnywhereInAWindow) {
  run_roomy_world(size(), [&](Core& core) {
    constexpr std::size_t kElements = kRelayWindow / sizeof(float);
    for (std::size_t elements : {std::size_t{513}, std::size_t{1000}, kElements - 1, kElements, kElements + 1,
                                 2 * kElements, 2 * kElements + 33, 5 * kElements + 7}) {
      reduce_and_check<float>(core, elements, DType::f32);
      reduce_and_check<float>(core, elements, DType::f32, "named");
    }
  });
}

TEST_P(Relay, SumsNarrowAndWideTypes) {
  run_roomy_world(size(), [&](Core& core) {
    for (const char* name : {"", "named"}) {
      reduce_and_check<std::int8_t>(core, 2 * kRelayWindow + 77, DType::i8, name);
      reduce_and_check<std::complex<double>>(core, kRelayWindow / 4 + 3, DType::c128, name);
    }
  });
}

TEST_P(Relay, AveragesAndScales) {
  run_roomy_world(size(), [&](Core& core) {
    std::vector<float> data(100'000, static_cast<float>(core.options().rank));
    Request request = reduction_of(data, data, DType::f32, "scaled");
    request.op = ReduceOp::average;
    request.prescale = 4.0;
    request.postscale = 0.5;
    run(core, request);
    EXPECT_EQ(data, std::vector<float>(data.size(), static_cast<float>(size() - 1)));
  });
}

// Rank 0 has its tensor in the heap, the last one found no room for a relay; both are reached where they are.
TEST_P(Relay, MeetsTensorsInTheHeapAndAFullHeap) {
  run_roomy_world(
      size(),
      [&](Core& core) {
        transport::SharedMemory& shared = *core.transport().shared();
        const int rank = core.options().rank;
        constexpr std::size_t kElements = 200'000;
        std::vector<float> own(kElements);
        float* data = own.data();
        if (rank == 0) data = static_cast<float*>(shared.allocate(kElements * sizeof(float)));
        if (rank == size() - 1) {
          while (shared.allocate(16 * 1024) != nullptr) {
          }
        }
        for (const char* name : {"", "named", ""}) {
          for (std::size_t i = 0; i < kElements; ++i) data[i] = value_of<float>(rank, i);
          run(core, all_reduce(data, kElements, name));
          for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(data[i], sum_of<float>(size(), i)) << i;
        }
      },
      /*arena_bytes=*/2 << 20);
}

// Nobody waits for those who submitted without waiting.
TEST_P(Relay, MeetsTensorsThatAreNotWaitedFor) {
  run_roomy_world(size(), [&](Core& core) {
    const int rank = core.options().rank;
    constexpr std::size_t kElements = 100'000;
    std::vector<float> data(kElements);
    for (int turn = 0; turn < 4; ++turn) {
      for (std::size_t i = 0; i < kElements; ++i) data[i] = value_of<float>(rank, i);
      if ((rank + turn) % 2 == 0) {
        run(core, all_reduce(data.data(), kElements, "mixed"));
      } else {
        const auto operation = core.submit(all_reduce(data.data(), kElements, "mixed"), /*background=*/true);
        core.wait(*operation);
        core.check(*operation);
      }
      for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(data[i], sum_of<float>(size(), i)) << i;
    }
  });
}

TEST_P(Relay, GoesAroundARankThatHasJoined) {
  run_roomy_world(size(), [&](Core& core) {
    const int rank = core.options().rank;
    std::vector<float> data(100'000, static_cast<float>(rank + 1));
    if (rank != 1) {
      run(core, all_reduce(data.data(), data.size()));
      const auto expected = static_cast<float>(size() * (size() + 1) / 2 - 2);
      EXPECT_EQ(data, std::vector<float>(data.size(), expected));
    }
    Request join;
    join.kind = collective::Kind::join;
    run(core, join);
    std::fill(data.begin(), data.end(), 1.0F);
    run(core, all_reduce(data.data(), data.size()));
    EXPECT_EQ(data, std::vector<float>(data.size(), static_cast<float>(size())));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Relay, testing::Values(2, 3, 5));

}  // namespace
}  // namespace lockstep::engine
