// What comes to a port from people who do not belong to the job. In every test a member comes in all the same.
#include <gtest/gtest.h>
#include <openssl/rand.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "net/gate_keeper_test.hpp"
#include "net/tls_stranger_test.hpp"

namespace lockstep::net {
namespace {

using namespace std::chrono_literals;

// Time enough for a handshake on a busy machine, and short enough to wait for.
constexpr auto kPatience = 400ms;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

class Strangers : public testing::Test {
 protected:
  Socket connect() { return Socket::connect(keeper_.address(), soon()); }

  /// Sends, and expects to be turned away without a word of ours.
  void expect_refused(std::span<const std::byte> bytes) {
    Socket socket = connect();
    const std::uint64_t before = keeper_.strangers();
    expect_dropped(socket, bytes);
    keeper_.await_strangers(before + 1);
  }

  static void expect_dropped(Socket& socket, std::span<const std::byte> bytes) {
    std::byte buffer[4096];
    try {
      write_whole(socket, bytes, soon());
      for (;;) {
        ASSERT_TRUE(socket.read_some(buffer) > 0 || wait_for(socket.fd(), POLLIN, soon()));
      }
    } catch (const ConnectionLost&) {
    }
  }

  void expect_member_comes_in() {
    auto channel = call_control(TlsContext(), GateKeeper::member(3), keeper_.call());
    Arrival arrival = keeper_.arrival();
    EXPECT_EQ(arrival.identity.from, 3u);
    EXPECT_TRUE(converse(*channel.stream, *arrival.stream));
    EXPECT_EQ(keeper_.arrived(), 0u);  // and nobody else
  }

  /// What a member sends first, as somebody who listens on the wire would record it.
  std::vector<std::byte> recorded_hello() {
    Listener wire(Address::loopback());
    wire.open();
    std::vector<std::byte> record(4096);
    std::thread member([&] {
      EXPECT_THROW(call_control(TlsContext(), GateKeeper::member(2),
                                {.rank = 0, .address = wire.address(), .deadline = in(300ms)}),
                   Error);
    });
    EXPECT_TRUE(wait_for(wire.fd(), POLLIN, soon()));
    Socket socket = std::move(*wire.accept());
    EXPECT_TRUE(wait_for(socket.fd(), POLLIN, soon()));
    record.resize(socket.read_some(record));
    member.join();
    return record;
  }

  GateKeeper keeper_{GateOptions{.patience = kPatience}};
};

TEST_F(Strangers, Http) {
  expect_refused(bytes_of("GET / HTTP/1.1\r\nHost: training\r\n\r\n"));
  expect_refused(bytes_of("L / HTTP/1.1\r\nHost: training\r\n\r\n" + std::string(100, 'x')));  // our first letter
  expect_member_comes_in();
}

TEST_F(Strangers, TlsWithoutTheKey) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    Socket socket = connect();
    const std::uint64_t before = keeper_.strangers();
    EXPECT_TRUE(is_refused_without_key(socket, version, soon()));
    keeper_.await_strangers(before + 1);
  }
  expect_member_comes_in();
}

TEST_F(Strangers, RandomBytes) {
  std::vector<std::byte> noise(5000);
  for (int round = 0; round < 20; ++round) {
    RAND_bytes(reinterpret_cast<unsigned char*>(noise.data()), static_cast<int>(noise.size()));
    if (round % 3 == 1) noise[0] = std::byte{0x16};
    if (round % 3 == 2) noise[0] = kIdentityFirstByte;
    expect_refused(noise);
  }
  expect_member_comes_in();
}

TEST_F(Strangers, HugeLengths) {
  // A TLS record and a hello in it that announce as much as they can, and then send for ever.
  std::vector<std::byte> record(100'000, std::byte{0x55});
  const unsigned char head[] = {0x16, 0x03, 0x01, 0x3f, 0xff, 0x01, 0xff, 0xff, 0xff};
  std::memcpy(record.data(), head, sizeof head);
  expect_refused(record);
  const unsigned char plausible[] = {0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0xff, 0xff, 0x03, 0x03};
  std::memcpy(record.data(), plausible, sizeof plausible);
  expect_refused(record);
  expect_member_comes_in();
}

TEST_F(Strangers, AThousandHalfOpenConnections) {
  const std::size_t before = resident_bytes();
  const auto hello = recorded_hello();
  std::vector<Socket> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(connect());
    if (i % 2 == 0) continue;
    try {
      write_whole(crowd.back(), std::span(hello).first(i % 4 == 1 ? 1 : hello.size() / 2), soon());
    } catch (const ConnectionLost&) {  // dropped already
    }
    if (i % 250 == 1) expect_member_comes_in();
  }
  expect_member_comes_in();
  keeper_.await_strangers(1000);
  EXPECT_LE(keeper_.most_waiting(), GateOptions{}.most_strangers);
  const std::size_t allowed = under_sanitizer() ? 256u << 20 : 16u << 20;  // sanitizers keep what was freed
  EXPECT_LT(resident_bytes(), before + allowed);
}

TEST_F(Strangers, SlowBytes) {
  const auto hello = recorded_hello();
  std::vector<std::byte> data_hello(kDataHelloBytes, kIdentityFirstByte);
  std::vector<std::thread> slow;
  const auto begin = Clock::now();
  std::atomic<int> gone = 0;
  for (const auto& bytes : {hello, data_hello}) {
    slow.emplace_back([&, socket = connect(), bytes]() mutable {
      try {
        for (const std::byte& byte : bytes) {  // would take many times its patience
          write_whole(socket, {&byte, 1}, soon());
          std::byte answer{};
          for (const auto next = in(50ms); Clock::now() < next && wait_for(socket.fd(), POLLIN, next);)
            socket.read_some({&answer, 1});
        }
      } catch (const ConnectionLost&) {
        ++gone;
      }
    });
  }
  expect_member_comes_in();
  keeper_.await_strangers(2);
  EXPECT_GE(Clock::now() - begin, kPatience);
  for (auto& thread : slow) thread.join();
  EXPECT_EQ(gone, 2);
  EXPECT_LT(Clock::now() - begin, 50ms * kDataHelloBytes);
}

TEST_F(Strangers, AReplayedHello) {
  const auto hello = recorded_hello();
  // The recorded hello is a member's, so it is answered; but without the key nobody can go on from there.
  Socket socket = connect();
  write_whole(socket, hello, soon());
  ASSERT_TRUE(wait_for(socket.fd(), POLLIN, soon()));
  expect_dropped(socket, hello);
  keeper_.await_strangers(1);
  expect_member_comes_in();
}

TEST_F(Strangers, AReplayedDataConnection) {
  const Membership self = GateKeeper::member(1);
  const auto control = call_control(TlsContext(), self, keeper_.call());
  keeper_.arrival();
  // The whole exchange of a member, recorded; and again, byte for byte, to a gate that has the same key.
  const DataHello hello{.identity = self.identity(0, Use::data, 1), .nonce = random_nonce()};
  Digest proof{};
  for (const bool replayed : {false, true}) {
    Socket socket = connect();
    write_whole(socket, encode(hello), soon());
    std::array<std::byte, kDataAnswerBytes> answer{};
    read_whole(socket, answer, soon());
    if (!replayed) proof = caller_proof(control.data_key, hello, decode_data_answer(answer).nonce);
    write_whole(socket, std::as_bytes(std::span(proof)), soon());
    if (replayed) {
      expect_dropped(socket, {});
      keeper_.await_strangers(1);
    } else {
      EXPECT_EQ(keeper_.arrival().identity, hello.identity);
    }
  }
  expect_member_comes_in();
}

TEST_F(Strangers, ATruncatedHello) {
  const auto hello = recorded_hello();
  for (const std::size_t size : {std::size_t{1}, std::size_t{5}, hello.size() / 2, hello.size() - 1}) {
    const std::uint64_t before = keeper_.strangers();
    {
      Socket socket = connect();
      write_whole(socket, std::span(hello).first(size), soon());
    }
    keeper_.await_strangers(before + 1);
  }
  expect_member_comes_in();
}

TEST_F(Strangers, ADataHelloOfAnOldEpochOrOfNobody) {
  auto old = GateKeeper::member(1);
  old.epoch = 2;
  for (const Membership& member : {old, GateKeeper::member(2)})  // rank 2 has no control channel
    expect_refused(encode(DataHello{.identity = member.identity(0, Use::data, 0), .nonce = random_nonce()}));
  expect_member_comes_in();
}

}  // namespace
}  // namespace lockstep::net
