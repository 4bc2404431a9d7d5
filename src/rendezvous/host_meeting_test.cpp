#include "rendezvous/host_meeting.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "net/frame.hpp"
#include "net/greeting.hpp"
#include "net/tls.hpp"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using net::Address;

HostMeetingOptions attendant(std::uint32_t rank, std::uint32_t size, std::chrono::milliseconds timeout = 30s) {
  return {.self = {.secret = std::string(32, 's'),
                   .job = net::job_tag("j"),
                   .epoch = 3,
                   .rank = rank,
                   .size = size,
                   .release = "1.0"},
          .timeout = timeout};
}

Card card_of(std::uint32_t rank) {
  return {.door = Address::loopback(static_cast<std::uint16_t>(1000 + rank)),
          .again = Address::loopback(static_cast<std::uint16_t>(2000 + rank)),
          .host = "host " + std::to_string(rank)};
}

// What each rank gets, or is told.
struct Result {
  std::vector<Card> cards;
  std::string problem;
};

Result attend(const HostMeetingOptions& options, const std::shared_ptr<net::Listener>& listener) {
  Result result;
  try {
    const std::uint32_t rank = options.self.rank;
    result.cards = rank == 0 ? hold_meeting(options, listener, card_of(0))
                             : attend_meeting(options, listener->address(), card_of(rank));
  } catch (const Error& error) {
    result.problem = error.what();
  }
  return result;
}

std::vector<Result> meet(const std::vector<HostMeetingOptions>& all) {
  const auto listener = std::make_shared<net::Listener>(Address::loopback());
  std::vector<Result> results(all.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i) threads.emplace_back([&, i] { results[i] = attend(all[i], listener); });
  for (auto& thread : threads) thread.join();
  return results;
}

TEST(HostMeeting, GivesEverybodyAllCards) {
  for (const Result& result : meet({attendant(0, 3), attendant(1, 3), attendant(2, 3)})) {
    ASSERT_EQ(result.cards.size(), 3U) << result.problem;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(result.cards[rank].door, card_of(rank).door);
      EXPECT_EQ(result.cards[rank].again, card_of(rank).again);
      EXPECT_EQ(result.cards[rank].host, card_of(rank).host);
    }
  }
}

TEST(HostMeeting, NamesThoseThatDoNotComeOnAllThatDid) {
  for (const Result& result : meet({attendant(0, 4, 500ms), attendant(2, 4, 500ms)})) {
    EXPECT_NE(result.problem.find("2 of 4 ranks arrived within 0.5 s"), std::string::npos) << result.problem;
    EXPECT_NE(result.problem.find("missing: 1, 3."), std::string::npos) << result.problem;
  }
}

TEST(HostMeeting, RefusesMixedVersionsWithBothNamedOnEveryRank) {
  auto other = attendant(2, 3);
  other.self.release = "0.9";
  for (const Result& result : meet({attendant(0, 3), attendant(1, 3), other})) {
    EXPECT_NE(result.problem.find("1.0"), std::string::npos) << result.problem;
    EXPECT_NE(result.problem.find("0.9"), std::string::npos) << result.problem;
  }
}

TEST(HostMeeting, TellsARankWithAnotherSecretAndIsNotDisturbed) {
  auto stranger = attendant(1, 2, 5s);
  stranger.self.secret = std::string(32, 'x');
  const auto listener = std::make_shared<net::Listener>(Address::loopback());
  Result first;
  std::thread zero([&] { first = attend(attendant(0, 2), listener); });
  EXPECT_NE(attend(stranger, listener).problem.find("do not hold the same secret"), std::string::npos);
  EXPECT_EQ(attend(attendant(1, 2), listener).cards.size(), 2U);
  zero.join();
  EXPECT_EQ(first.cards.size(), 2U) << first.problem;
}

TEST(HostMeeting, GarbageDoesNotDisturbIt) {
  const auto listener = std::make_shared<net::Listener>(Address::loopback());
  listener->open();
  const auto soon = net::Clock::now() + 30s;
  std::vector<net::Socket> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(net::Socket::connect(listener->address(), soon));
    const std::string garbage = i % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : std::string(100, static_cast<char>(i));
    strangers.back().write_some(std::as_bytes(std::span(garbage)));
  }
  Result first;
  std::thread zero([&] { first = attend(attendant(0, 2), listener); });
  EXPECT_EQ(attend(attendant(1, 2), listener).cards.size(), 2U);
  zero.join();
  EXPECT_EQ(first.cards.size(), 2U) << first.problem;
}

TEST(HostMeeting, ACallerOfALaterEpochWaitsForItsOwnMeeting) {
  const auto listener = std::make_shared<net::Listener>(Address::loopback());
  auto later_0 = attendant(0, 2), later_1 = attendant(1, 2);
  later_0.self.epoch = later_1.self.epoch = 4;
  std::vector<Result> results(4);
  std::thread early([&] { results[0] = attend(later_1, listener); });
  std::thread one([&] { results[1] = attend(attendant(1, 2), listener); });
  results[2] = attend(attendant(0, 2), listener);
  results[3] = attend(later_0, listener);
  early.join();
  one.join();
  for (const Result& result : results) EXPECT_EQ(result.cards.size(), 2U) << result.problem;
}

TEST(HostMeeting, CardsOfAnotherShapeAreRefused) {
  auto bytes = encode(card_of(1));
  EXPECT_NO_THROW(decode_card(bytes));
  EXPECT_THROW(decode_table(bytes, 2), net::BadFrame);
  bytes[0] = std::byte{'x'};
  EXPECT_THROW(decode_card(bytes), net::BadFrame);
  bytes.pop_back();
  EXPECT_THROW(decode_card(bytes), net::BadFrame);
}

}  // namespace
}  // namespace lockstep::rendezvous
