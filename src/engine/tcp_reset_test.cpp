// Connections that are lost while operations are under way: they are made again, and nobody notices.
#include <gtest/gtest.h>

#include <vector>

#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

std::vector<std::unique_ptr<transport::Transport>> make_shaky_world(int size, std::size_t reset_after_bytes) {
  std::vector<transport::TcpOptions> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(transport::tcp_test_options(rank, size));
    all.back().reset_after_bytes = reset_after_bytes;
  }
  return transport::connect_tcp_world(std::move(all));
}

float value_of(std::size_t i, int rank) {
  return 1.0F / static_cast<float>(1 + i % 1000 + static_cast<std::size_t>(rank) * 7);
}

// Every rank reduces `elements` so many times, and finds what two ranks must find.
void reduce_in(std::vector<std::unique_ptr<transport::Transport>> transports, std::size_t elements, int times) {
  std::vector<std::thread> threads;
  const int size = static_cast<int>(transports.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Core core(world_options(rank, size), std::move(transports[static_cast<std::size_t>(rank)]));
      std::vector<float> values(elements);
      for (int round = 0; round < times; ++round) {
        for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(i, rank);
        run(core, all_reduce(values.data(), elements));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < elements; ++i) wrong += values[i] != value_of(i, 0) + value_of(i, 1) ? 1 : 0;
        EXPECT_EQ(wrong, 0u) << "rank " << rank << ", round " << round;
      }
      run(core, barrier());
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(TcpReset, InALargeOperationChangesNothing) {
  const std::size_t megabytes = under_sanitizer() ? 8 : 64;  // of the tensor: a tenth between two resets
  reduce_in(make_shaky_world(2, megabytes * 100'000), megabytes * 262'144, 1);
}

TEST(TcpReset, WithTensorsThatComeWithTheirNoticesChangesNothing) {
  reduce_in(make_shaky_world(2, 1'500'000), 262'144, under_sanitizer() ? 10 : 50);
}

TEST(TcpReset, BetweenSmallOperationsChangesNothing) {
  reduce_in(make_shaky_world(2, 20'000), 500, under_sanitizer() ? 100 : 500);
}

}  // namespace
}  // namespace lockstep::engine
