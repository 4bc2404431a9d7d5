// Ranks of several hosts, some of which hold several: the same bits as on one host, for every split and placement.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "engine/staging.hpp"
#include "engine/world_test.hpp"

namespace lockstep::engine {
namespace {

using HostTensor = std::vector<std::byte>;

struct HostSum {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t elements = 0;
  double prescale = 1.0;
  bool in_place = true;
};

// Numbers whose sums depend on the order of additions; small integers where the type has no fractions.
HostTensor host_contents(const HostSum& sum, int rank) {
  HostTensor bytes(sum.elements * size_of(sum.dtype));
  for (std::size_t i = 0; i < sum.elements; ++i) {
    const std::uint32_t noise =
        (static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 97U) >> 8;
    const float number = 1.0F / static_cast<float>(1 + noise % 1009) * ((noise & 1U) != 0 ? 1.0F : -1.0F);
    std::byte* to = bytes.data() + i * size_of(sum.dtype);
    if (sum.dtype == DType::f32) {
      std::memcpy(to, &number, sizeof number);
    } else if (sum.dtype == DType::f64) {
      const double wide = number;
      std::memcpy(to, &wide, sizeof wide);
    } else if (sum.dtype == DType::i32) {
      const auto whole = static_cast<std::int32_t>(noise % 100'000);
      std::memcpy(to, &whole, sizeof whole);
    } else {  // 16 bits: of f16 any finite number, of bf16 the upper half
      std::uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      const auto half = static_cast<std::uint16_t>(sum.dtype == DType::bf16 ? bits >> 16 : 0x3000U | (noise & 0x8FFFU));
      std::memcpy(to, &half, sizeof half);
    }
  }
  return bytes;
}

HostTensor reduce_one(Core& core, const HostSum& sum) {
  HostTensor input = host_contents(sum, core.options().rank);
  HostTensor output(sum.in_place ? 0 : input.size());
  Request request = all_reduce(input.data(), sum.elements, "sum", sum.op);
  request.input.dtype = request.output.dtype = sum.dtype;
  request.prescale = sum.prescale;
  if (!sum.in_place) request.output.data = output.data();
  run(core, std::move(request));
  return sum.in_place ? input : output;
}

// What each rank has in the end.
std::vector<HostTensor> reduce_on_all(std::vector<std::unique_ptr<transport::Transport>> transports,
                                      const HostSum& sum) {
  const int size = static_cast<int>(transports.size());
  std::vector<HostTensor> results(transports.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      Core core(world_options(rank, size), std::move(transports[index]));
      results[index] = reduce_one(core, sum);
      run(core, barrier());
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

void expect_same_bits(const std::vector<int>& hosts, const HostSum& sum) {
  const HostTensor expected = reduce_on_all(make_world(Over::memory, static_cast<int>(hosts.size())), sum).front();
  const auto results = reduce_on_all(transport::make_tcp_hosts(hosts), sum);
  for (std::size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank] == expected) << "rank " << rank << ", " << name_of(sum.dtype);
}

const std::vector<std::vector<int>> kSplits = {
    {0, 1},       {0, 0, 1, 1},    {0, 0, 0, 1, 1},    {0, 1, 1, 1},
    {0, 1, 0, 1}, {1, 0, 0, 1, 0}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1},
};

TEST(Hosts, EverySplitAndPlacementGivesTheSameBits) {
  const std::size_t chunks = under_sanitizer() ? 1 : 3;  // of each rank's slice, and a part of one
  for (const auto& hosts : kSplits) expect_same_bits(hosts, {.elements = chunks * 32'768 * hosts.size() + 1'237});
}

TEST(Hosts, OfEveryTypeAndOperation) {
  const std::vector<int> hosts = {0, 0, 0, 1, 1};
  const std::size_t elements = 100'003;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max})
      expect_same_bits(hosts, {.dtype = dtype, .op = op, .elements = elements});
    expect_same_bits(hosts, {.dtype = dtype, .elements = elements, .prescale = 0.3, .in_place = false});
  }
}

TEST(Hosts, LargeTensorsArriveWholeWhenNothingIsAligned) {
  for (const auto& hosts : {std::vector<int>{0, 1}, {0, 1, 2}, {0, 0, 1, 1}}) {
    expect_same_bits(hosts, {.elements = (under_sanitizer() ? 400'000U : 3'000'001U)});
    expect_same_bits(hosts, {.elements = 300'007, .in_place = false});
  }
}

// What is done follows from the notices: ranks may think differently of the network.
TEST(Hosts, RanksThatTakeTheNetworkForAnotherGetTheSameBits) {
  const std::vector<int> hosts = {0, 0, 1, 2};
  for (const std::size_t elements : {100U, 5'000U, 60'000U}) {
    const HostSum sum{.elements = elements};
    const HostTensor expected = reduce_on_all(make_world(Over::memory, 4), sum).front();
    std::vector<transport::TcpOptions> all;
    for (int rank = 0; rank < 4; ++rank) {
      all.push_back(transport::tcp_test_options(rank, 4));
      all.back().hosts = hosts;
      all.back().bytes_per_trip = rank % 2 == 0 ? 1 : 16 << 20;
    }
    for (const HostTensor& result : reduce_on_all(transport::connect_tcp_world(all), sum))
      EXPECT_TRUE(result == expected) << elements;
  }
}

TEST(Hosts, AttachedIsWhatCostsLessThanARoundTrip) {
  const std::size_t trip = 120'000;
  EXPECT_EQ(most_attached_sum({1, 1}, trip), std::numeric_limits<std::size_t>::max());  // not a byte more
  EXPECT_EQ(most_attached_sum({1, 1, 1, 1}, trip), trip * 4 / 6);                       // 3 parts instead of 1.5
  EXPECT_EQ(most_attached_sum({2, 2}, trip), trip / 3);                                 // 4 instead of 1
  EXPECT_EQ(most_attached_sum({3, 2}, trip), trip / 5);                                 // 6 instead of 1
}

// A rank that has joined is a skipped leaf, in whichever host it is.
TEST(Hosts, ARankThatHasJoinedIsLeftOut) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  auto transports = transport::make_tcp_hosts(hosts);
  std::vector<HostTensor> results(hosts.size());
  std::vector<std::thread> threads;
  const HostSum sum{.elements = 200'003};
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      Core core(world_options(rank, 4), std::move(transports[index]));
      if (rank != 1) results[index] = reduce_one(core, sum);
      Request join;
      join.kind = collective::Kind::join;
      run(core, std::move(join));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(results[0] == results[2] && results[2] == results[3]);
  std::vector<float> values(sum.elements);
  std::memcpy(values.data(), results[0].data(), results[0].size());
  std::vector<std::vector<float>> inputs;
  for (const int rank : {0, 2, 3}) {
    inputs.emplace_back(sum.elements);
    std::memcpy(inputs.back().data(), host_contents(sum, rank).data(), results[0].size());
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < sum.elements; ++i)
    wrong += values[i] != inputs[0][i] + (inputs[1][i] + inputs[2][i]) ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace lockstep::engine
