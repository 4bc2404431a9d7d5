#include "transport/tcp/tcp_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "net/greeting.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/tcp_world_test.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport {
namespace {

using namespace std::chrono_literals;
using net::Clock;

// True as soon as `holds` does, which is not asked again then: it may have taken what it asked for. False when that
// takes longer than any test should.
template <class Condition>
bool comes_true(Transport& transport, const Condition& holds) {
  const auto limit = Clock::now() + 30s;
  bool held = false;
  const auto ask = [&] { return held = held || holds(); };
  while (!ask()) {
    if (Clock::now() > limit) return false;
    transport.sleep(10ms, ask);
  }
  return true;
}

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 7);
  return bytes;
}

// Both send before either receives: more than any socket holds.
void exchange(Transport& one, Transport& other, std::size_t size) {
  const auto first = noise(size, 1), second = noise(size, 2);
  one.messages()->send(1, 7, 0, first);
  other.messages()->send(0, 7, 0, second);
  std::vector<std::byte> heard(size);
  std::thread thread([&] {
    std::vector<std::byte> there(size);
    EXPECT_TRUE(comes_true(other, [&] { return other.messages()->receive(0, 7, 0, there); }));
    EXPECT_EQ(there, first);
  });
  EXPECT_TRUE(comes_true(one, [&] { return one.messages()->receive(1, 7, 0, heard); }));
  thread.join();
  EXPECT_EQ(heard, second);
}

TEST(TcpTransport, MessagesOfAllSizesBothWaysAtOnce) {
  for (const bool encrypt : {false, true}) {
    std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
    for (auto& one : options) one.encrypt_data = encrypt;
    auto ranks = connect_tcp_world(options);
    for (const std::size_t size : {0u, 1u, 4096u, 1u << 20, (5u << 20) + 3}) exchange(*ranks[0], *ranks[1], size);
  }
}

TEST(TcpTransport, MessagesSurviveConnectionsThatAreReset) {
  for (const bool encrypt : {false, true}) {
    std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
    for (auto& one : options) {
      one.encrypt_data = encrypt;
      one.reset_after_bytes = 3'000'000;
    }
    auto ranks = connect_tcp_world(options);
    for (int i = 0; i < 3; ++i) exchange(*ranks[0], *ranks[1], (5u << 20) + 3);
  }
}

TEST(TcpTransport, OneThatVanishesIsDeadAndOneThatLeavesHasLeft) {
  auto ranks = make_tcp_world(3);
  ranks[1]->leave();
  ranks[1].reset();
  ranks[2].reset();
  EXPECT_TRUE(comes_true(*ranks[0], [&] { return ranks[0]->health(1) != Health::alive; }));
  EXPECT_EQ(ranks[0]->health(1), Health::left);
  EXPECT_TRUE(comes_true(*ranks[0], [&] { return ranks[0]->health(2) != Health::alive; }));
  EXPECT_EQ(ranks[0]->health(2), Health::dead);
}

TEST(TcpTransport, OneThatIsSilentThoughItsHostAnswersIsStopped) {
  auto options = tcp_test_options(0, 2);
  options.heartbeat = 20ms;
  options.silence = 300ms;
  TcpDoor door(options);
  tcp::Mesh mute(tcp_test_options(1, 2));  // connects, and then nobody looks after it
  const std::vector<net::Address> addresses = {door.address(), mute.address()};
  std::vector<tcp::PeerStreams> held;
  std::thread other([&] { held = mute.connect(addresses, Clock::now() + 30s); });
  auto rank = TcpDoor::connect(std::move(door), addresses, Clock::now() + 30s);
  other.join();
  const auto since = Clock::now();
  EXPECT_TRUE(comes_true(*rank, [&] { return rank->health(1) != Health::alive; }));
  EXPECT_EQ(rank->health(1), Health::stopped);
  EXPECT_GE(Clock::now() - since, 200ms);
}

TEST(TcpTransport, AllSeeTheSameVerdictWhoeverSpeaksFirst) {
  for (int round = 0; round < 5; ++round) {
    auto ranks = make_tcp_world(4);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        ranks[static_cast<std::size_t>(rank)]->pronounce(
            {.code = ErrorCode::aborted, .rank = rank, .text = "said by " + std::to_string(rank)});
      });
    }
    for (auto& thread : threads) thread.join();
    const auto verdict = ranks[0]->verdict();
    ASSERT_TRUE(verdict);
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->verdict()->rank, verdict->rank);
      EXPECT_EQ(rank->verdict()->text, verdict->text);
    }
  }
}

TEST(TcpTransport, AVerdictReachesThoseWhoOnlySleepAndOutlivesItsLeader) {
  auto ranks = make_tcp_world(3);
  ranks[1]->pronounce({.code = ErrorCode::aborted, .rank = 1, .text = "enough"});
  ranks[0].reset();  // it led
  EXPECT_TRUE(comes_true(*ranks[2], [&] { return ranks[2]->health(0) == Health::dead; }));
  ranks[2]->pronounce({.code = ErrorCode::peer_lost, .rank = 0, .text = "lost rank 0"});
  EXPECT_EQ(ranks[1]->verdict()->text, "enough");
  EXPECT_EQ(ranks[2]->verdict()->text, "enough");
}

TEST(TcpTransport, ASeatIsChangedByOne) {
  auto ranks = make_tcp_world(3);
  std::atomic<int> winners = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] { winners += ranks[rank]->change_seat(1, 0, rank + 1) ? 1 : 0; });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
  EXPECT_NE(ranks[0]->seat(1), 0u);
  EXPECT_EQ(ranks[0]->seat(1), ranks[2]->seat(1));
}

TEST(TcpTransport, AnotherVersionIsRefusedInWords) {
  std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
  options[1].self.release = "other";
  try {
    connect_tcp_world(options);
    FAIL() << "they met";
  } catch (const net::Refused& refused) {
    EXPECT_EQ(refused.reason(), net::Reason::version);
  }
}

TEST(TcpWire, WhatIsCutShortOrTooLongIsNoFrame) {
  using namespace tcp;
  SharedWords words{.ballot = 1, .version = 2, .verdict = Verdict{.code = ErrorCode::timeout, .rank = 1, .text = "t"}};
  words.seats = {1, 2, 3};
  const std::vector<std::vector<std::byte>> frames = {
      pack(Hello{.process = 1, .token = 2}, 1),
      pack(Notice{}, 1),
      pack(Declaration{.standstill = {.doing = "d"}, .threads = {1, 2}}, 1),
      pack(Message(Propose{.request = 1, .command = *words.verdict}), 1),
      pack(Message(Propose{.request = 1, .command = ChangeSeat{}}), 1),
      pack(Message(Tell{.ballot = 3, .words = words}), 1),
      pack(Message(Snapshot{.words = words}), 1),
      pack(Message(Ack{}), 1),
  };
  for (const auto& bytes : frames) {
    const auto header = net::decode_frame_header(std::span(bytes).first<net::kFrameHeaderBytes>());
    net::Frame frame{.kind = header.kind, .payload = {bytes.begin() + net::kFrameHeaderBytes, bytes.end()}};
    EXPECT_LE(frame.payload.size(), said_limit(header.kind));
    EXPECT_NO_THROW(unpack(frame, 3));
    frame.payload.push_back(std::byte{});
    EXPECT_THROW(unpack(frame, 3), net::BadFrame) << header.kind;
    frame.payload.resize(frame.payload.size() - 2);
    EXPECT_THROW(unpack(frame, 3), net::BadFrame) << header.kind;
  }
}

}  // namespace
}  // namespace lockstep::transport
