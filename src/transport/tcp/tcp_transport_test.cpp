#include "transport/tcp/tcp_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

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
void exchange(Transport& one, Transport& other, std::size_t size, std::uint64_t operation = 7) {
  const auto first = noise(size, 1), second = noise(size, 2);
  one.messages()->send(1, operation, 0, first);
  other.messages()->send(0, operation, 0, second);
  std::vector<std::byte> heard(size);
  std::thread thread([&] {
    std::vector<std::byte> there(size);
    EXPECT_TRUE(comes_true(other, [&] { return other.messages()->receive(0, operation, 0, there); }));
    EXPECT_EQ(there, first);
  });
  EXPECT_TRUE(comes_true(one, [&] { return one.messages()->receive(1, operation, 0, heard); }));
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

// More than the sockets take, and the memory is its owner's again at once.
TEST(TcpTransport, WhatIsAttachedToANoticeReachesAll) {
  constexpr int kSize = 3, kNotices = 30;
  for (const bool encrypt : {false, true}) {
    std::vector<TcpOptions> options;
    for (int rank = 0; rank < kSize; ++rank) {
      options.push_back(tcp_test_options(rank, kSize));
      options.back().encrypt_data = encrypt;
    }
    auto ranks = connect_tcp_world(options);
    const auto bytes_of = [&](int number) {
      return std::min<std::size_t>(number % 3 == 0 ? 0 : number * 40'000, ranks[0]->most_attached());
    };
    for (int number = 0; number < kNotices; ++number) {
      Notice notice;
      notice.head.id = static_cast<std::uint64_t>(number) + 1;
      std::vector<std::byte> attached = noise(bytes_of(number), static_cast<unsigned>(number));
      ranks[0]->post_with(notice, attached);
      std::fill(attached.begin(), attached.end(), std::byte{0xff});
    }
    std::vector<std::thread> threads;
    for (int rank = 1; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        Transport& self = *ranks[static_cast<std::size_t>(rank)];
        std::vector<NoticeRef> heard;
        for (int number = 0; number < kNotices; ++number) {
          NoticeRef notice;
          EXPECT_TRUE(comes_true(self, [&] { return static_cast<bool>(notice = self.next(0)); }));
          heard.push_back(notice);
        }
        for (int number = 0; number < kNotices; ++number) {
          const NoticeRef& notice = heard[static_cast<std::size_t>(number)];
          EXPECT_EQ(notice.head->id, static_cast<std::uint64_t>(number) + 1);
          EXPECT_TRUE(std::ranges::equal(notice.attached, noise(bytes_of(number), static_cast<unsigned>(number))));
          self.release(0, notice.position);
        }
      });
    }
    EXPECT_TRUE(comes_true(*ranks[0], [&] { return ranks[0]->has_sent(kNotices); }));
    for (auto& thread : threads) thread.join();
  }
}

// More than the sockets take. What was not begun is not sent; what comes after it arrives.
TEST(TcpTransport, AnAbandonedOperationIsNeitherCopiedNorSent) {
  for (const bool encrypt : {false, true}) {
    std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
    for (auto& one : options) one.encrypt_data = encrypt;
    auto ranks = connect_tcp_world(options);
    {
      const auto lent = noise(64u << 20, 1);
      ranks[0]->messages()->lend(1, 7, 0, lent);
      EXPECT_FALSE(ranks[0]->has_sent(7));
      ranks[0]->messages()->abandon(7);
    }
    exchange(*ranks[0], *ranks[1], 5u << 20, /*operation=*/8);
    EXPECT_TRUE(ranks[0]->has_sent(7));
    std::vector<std::byte> whole(64u << 20);
    EXPECT_FALSE(ranks[1]->messages()->receive(0, 7, 0, whole));
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

// The control channels are lost and made again together with the data connections.
TEST(TcpTransport, TheAgreementSurvivesConnectionsThatAreReset) {
  constexpr int kSize = 3;
  constexpr std::uint64_t kRounds = 20;
  std::vector<TcpOptions> options;
  for (int rank = 0; rank < kSize; ++rank) {
    options.push_back(tcp_test_options(rank, kSize));
    options.back().reset_after_bytes = 50'000;
  }
  auto ranks = connect_tcp_world(options);
  std::atomic<std::uint64_t> winners = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      Transport& self = *ranks[static_cast<std::size_t>(rank)];
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer != rank) self.messages()->send(peer, round, 0, noise(30'000, 1));
        }
        std::vector<std::byte> heard(30'000);
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer == rank) continue;
          EXPECT_TRUE(comes_true(self, [&] { return self.messages()->receive(peer, round, 0, heard); }));
        }
        winners += self.change_seat(1, round, round + 1) ? 1 : 0;
        EXPECT_TRUE(comes_true(self, [&] { return self.seat(1) > round; }));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(winners, kRounds);
  for (const auto& rank : ranks) {
    for (int peer = 0; peer < kSize; ++peer) EXPECT_EQ(rank->health(peer), Health::alive);
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

// Whose keepers can be held, so that connections which are lost stay lost.
struct HeldWorld {
  std::atomic<bool> held = false;
  std::vector<std::unique_ptr<Transport>> ranks;

  explicit HeldWorld(std::size_t reset_after_bytes) {
    std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
    for (auto& one : options) {
      one.reset_after_bytes = reset_after_bytes;
      one.in_keeper = [this] {
        while (held) std::this_thread::sleep_for(1ms);
      };
    }
    ranks = connect_tcp_world(options);
  }
};

TEST(TcpTransport, WhatIsNotOnItsWayWhileAConnectionIsLostHasNotBeenSent) {
  HeldWorld world(20'000);
  Transport& self = *world.ranks[0];
  Transport& other = *world.ranks[1];
  world.held = true;
  const auto words = noise(1'000, 3);
  std::uint64_t operation = 1;
  const bool waits = comes_true(self, [&] {
    self.messages()->send(1, ++operation, 0, words);
    std::vector<std::byte> heard(1);
    other.messages()->receive(0, 0, 0, heard);  // looks at what has come, and loses the connection over it
    return !self.has_sent(operation);
  });
  EXPECT_TRUE(waits) << "all was sent, though there was no connection";
  world.held = false;
  EXPECT_TRUE(comes_true(self, [&] { return self.has_sent(operation); }));
  std::vector<std::byte> heard(words.size());
  EXPECT_TRUE(comes_true(other, [&] { return other.messages()->receive(0, operation, 0, heard); }));
  EXPECT_EQ(heard, words);
}

TEST(TcpTransport, WhatComesForARefusedOperationIsNotKept) {
  auto ranks = make_tcp_world(2);
  const auto words = noise(300'000, 4);
  ranks[1]->messages()->refuse(5);
  ranks[0]->messages()->send(1, 5, 0, words);
  ranks[0]->messages()->send(1, 6, 0, words);
  std::vector<std::byte> heard(words.size());
  EXPECT_TRUE(comes_true(*ranks[1], [&] { return ranks[1]->messages()->receive(0, 6, 0, heard); }));
  EXPECT_EQ(heard, words);
  EXPECT_FALSE(ranks[1]->messages()->receive(0, 5, 0, heard));
}

// Two ranks of one host, and one of another.
struct Neighbours {
  std::vector<std::unique_ptr<Transport>> ranks = make_tcp_hosts({0, 0, 1});
  Transport& sender = *ranks[0];
  Transport& receiver = *ranks[1];

  // Until then messages go through the connection.
  bool know_each_other() {
    return comes_true(sender, [&] {
      const std::vector<std::byte> message = noise(1 << 16, 1);
      const std::uint64_t operation = next_++;
      sender.messages()->lend(1, operation, 0, message);
      receiver.sleep(1ms, [] { return false; });
      const bool is_near = !sender.has_sent(operation);
      sender.messages()->abandon(operation);
      return is_near;
    });
  }

  std::uint64_t next_ = 1000;
};

TEST(TcpTransport, RanksOfOneHostReadEachOthersMemory) {
  Neighbours world;
  ASSERT_TRUE(world.know_each_other());
  auto message = noise(3 << 20, 4);
  std::vector<std::byte> there(message.size());
  world.sender.messages()->lend(1, 7, 0, message);
  EXPECT_FALSE(world.sender.has_sent(7));
  ASSERT_TRUE(comes_true(world.receiver, [&] { return world.receiver.messages()->receive(0, 7, 0, there); }));
  EXPECT_EQ(there, message);
  EXPECT_TRUE(comes_true(world.sender, [&] { return world.sender.has_sent(7); }));
  world.sender.messages()->lend(2, 8, 0, message);  // to another host as ever
  ASSERT_TRUE(comes_true(*world.ranks[2], [&] { return world.ranks[2]->messages()->receive(0, 8, 0, there); }));
}

TEST(TcpTransport, WhatANeighbourHasNotReadIsKeptForItWhenTheOperationEnds) {
  Neighbours world;
  ASSERT_TRUE(world.know_each_other());
  const auto message = noise(1 << 20, 5);
  auto own = message;
  std::vector<std::byte> there(message.size());
  world.sender.messages()->lend(1, 7, 0, own);
  world.sender.messages()->close(7);
  std::fill(own.begin(), own.end(), std::byte{});
  ASSERT_TRUE(comes_true(world.receiver, [&] { return world.receiver.messages()->receive(0, 7, 0, there); }));
  EXPECT_EQ(there, message);
}

TEST(TcpTransport, WhoLeavesWaitsForNeighboursThatHaveYetToRead) {
  Neighbours world;
  ASSERT_TRUE(world.know_each_other());
  const auto message = noise(1 << 20, 5);
  std::vector<std::byte> there(message.size());
  world.sender.messages()->lend(1, 7, 0, message);
  world.sender.messages()->close(7);
  std::thread leaving([&] { world.sender.leave(); });
  world.receiver.sleep(50ms, [] { return false; });
  EXPECT_TRUE(comes_true(world.receiver, [&] { return world.receiver.messages()->receive(0, 7, 0, there); }));
  leaving.join();
  EXPECT_EQ(there, message);
}

TEST(TcpTransport, WhatANeighbourDoesNotWantIsNotKeptForIt) {
  Neighbours world;
  ASSERT_TRUE(world.know_each_other());
  const auto message = noise(1 << 20, 6);
  world.receiver.messages()->refuse(7);
  world.sender.messages()->lend(1, 7, 0, message);
  const auto both_look = [&] {
    world.receiver.sleep(1ms, [] { return false; });
    return world.sender.has_sent(7);
  };
  EXPECT_TRUE(comes_true(world.sender, both_look));
  // Nor what has arrived already when it ends the operation.
  world.sender.messages()->lend(1, 8, 0, message);
  std::vector<std::byte> none(1);
  EXPECT_TRUE(comes_true(world.receiver, [&] {
    try {
      return world.receiver.messages()->receive(0, 8, 0, none);  // of another size
    } catch (const Error&) {
      return true;
    }
  }));
  world.receiver.messages()->close(8);
  EXPECT_TRUE(comes_true(world.sender, [&] { return world.sender.has_sent(8); }));
}

TEST(TcpTransport, AKeeperThatFailsEndsTheWorldInsteadOfTheProcess) {
  for (const int culprit : {0, 1}) {
    std::atomic<bool> fails = false;
    std::vector<TcpOptions> options = {tcp_test_options(0, 2), tcp_test_options(1, 2)};
    options[static_cast<std::size_t>(culprit)].in_keeper = [&] {
      if (fails) throw std::runtime_error("there is no thread left");
    };
    auto ranks = connect_tcp_world(options);
    fails = true;
    for (const auto& rank : ranks) {
      ASSERT_TRUE(comes_true(*rank, [&] { return rank->verdict().has_value(); }));
      EXPECT_EQ(rank->verdict()->rank, culprit);
      EXPECT_NE(rank->verdict()->text.find("there is no thread left"), std::string::npos) << rank->verdict()->text;
    }
  }
}

TEST(TcpTransport, RanksOnSeveralHostsLearnWhatTheNetworkCanDo) {
  auto ranks = make_tcp_hosts({0, 1, 1});
  const auto all_know = [&] {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->bytes_per_trip() > 0; });
  };
  EXPECT_TRUE(comes_true(*ranks[0], all_know));
  for (const auto& rank : ranks) {
    EXPECT_GT(rank->network().trip.count(), 0);
    EXPECT_GT(rank->network().rate, 1e6);
  }
  EXPECT_EQ(make_tcp_world(2)[0]->bytes_per_trip(), 0u) << "there is no network in one host";
}

TEST(TcpTransport, OneOfAnOldEpochDoesNotKeepOthersFromStarting) {
  tcp::Mesh first(tcp_test_options(0, 2)), second(tcp_test_options(1, 2));
  const std::vector<net::Address> addresses = {first.address(), second.address()};
  std::thread starting([&] { EXPECT_NO_THROW(first.connect(addresses, Clock::now() + 30s)); });
  net::Membership old = tcp_test_options(1, 2).self;
  old.epoch = 0;
  try {
    net::call_control(net::TlsContext(), old, {.rank = 0, .address = addresses[0], .deadline = Clock::now() + 30s});
    ADD_FAILURE() << "it was let in";
  } catch (const net::Refused& refused) {
    EXPECT_EQ(refused.reason(), net::Reason::epoch);
  }
  EXPECT_NO_THROW(second.connect(addresses, Clock::now() + 30s));
  starting.join();
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
      pack(Hello{.process = 1, .token = 2, .probe = 3}, 1),
      pack(Whereabouts{.operation = 1, .part = 2, .total = 3, .data = 4, .slip = 5, .number = 6}, 1),
      pack(Fetched{.number = 1}, 1),
      pack_head(Announcement{}, 1),
      pack(Declaration{.standstill = {.doing = "d"}, .threads = {1, 2}}, 1),
      pack(Message(Propose{.request = 1, .command = *words.verdict}), 1),
      pack(Message(Propose{.request = 1, .command = ChangeSeat{}}), 1),
      pack(Message(Tell{.ballot = 3, .words = words}), 1),
      pack(Message(Snapshot{.words = words}), 1),
      pack(Message(Ack{}), 1),
      pack(Measured{.network = {.trip = 1ms, .rate = 1e9}}, 1),
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
