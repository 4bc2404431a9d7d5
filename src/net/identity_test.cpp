#include "net/identity.hpp"

#include <gtest/gtest.h>

#include "net/data_hello.hpp"
#include "net/greeting.hpp"
#include "net/refusal_log.hpp"

namespace lockstep::net {
namespace {

Membership listener() {
  return {.secret = std::string(32, 's'), .job = job_tag("job"), .epoch = 3, .rank = 0, .size = 4, .release = "1.2.3"};
}

Membership caller() {
  Membership member = listener();
  member.rank = 2;
  return member;
}

std::optional<Reason> reason_against(const Membership& member, std::uint32_t to = 0) {
  const auto refusal = judge(member.identity(to, Use::control), listener());
  if (!refusal) return std::nullopt;
  EXPECT_FALSE(refusal->text.empty());
  return refusal->reason;
}

TEST(Identity, TravelsUnchanged) {
  const Identity identity = caller().identity(0, Use::data, 5);
  EXPECT_EQ(decode_identity(encode(identity)), identity);
}

TEST(Identity, IsNoneWithAnotherSizeMagicOrUse) {
  auto bytes = encode(caller().identity(0, Use::control));
  EXPECT_FALSE(decode_identity(std::span(bytes).first(63)));
  EXPECT_FALSE(decode_identity({}));
  for (const std::size_t place : {0u, 44u}) {
    auto changed = bytes;
    changed[place] = std::byte{9};
    EXPECT_FALSE(decode_identity(changed)) << place;
  }
}

TEST(Identity, OfAnotherVersionIsUnderstoodAndMadeFitToBeShown) {
  auto bytes = encode(caller().identity(0, Use::control));
  bytes[4] = std::byte{99};
  bytes[8] = std::byte{27};  // an escape, which a terminal would obey
  const auto identity = decode_identity(bytes);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->protocol, 99u);
  EXPECT_EQ(identity->release, "?.2.3");
  EXPECT_EQ(judge(*identity, listener())->reason, Reason::version);
}

TEST(Identity, WhatSpeaksAgainstACaller) {
  EXPECT_EQ(reason_against(caller()), std::nullopt);
  Membership other = caller();
  other.release = "1.2.4";
  EXPECT_EQ(reason_against(other), Reason::version);
  other = caller();
  other.job = job_tag("another");
  EXPECT_EQ(reason_against(other), Reason::job);
  for (const std::uint32_t epoch : {0u, 2u, 4u}) {
    other = caller();
    other.epoch = epoch;
    EXPECT_EQ(reason_against(other), Reason::epoch);
  }
  other = caller();
  other.size = 5;
  EXPECT_EQ(reason_against(other), Reason::world);
  other.size = 4;
  EXPECT_EQ(reason_against(other, 1), Reason::world);  // it wanted somebody else
  other.rank = 4;
  EXPECT_EQ(reason_against(other), Reason::world);
  other.rank = 0;
  EXPECT_EQ(reason_against(other), Reason::world);  // it says that it is the one it calls
}

TEST(Identity, KeysDifferByUseEpochJobAndSecretAndNotByVersionOrRank) {
  const Identity identity = caller().identity(0, Use::control);
  const auto key = [](const Identity& id) { return control_key(std::string(32, 's'), id); };
  Identity other = identity;
  other.use = Use::data;
  EXPECT_NE(key(other), key(identity));
  other = identity;
  ++other.epoch;
  EXPECT_NE(key(other), key(identity));
  other = identity;
  other.job = job_tag("another");
  EXPECT_NE(key(other), key(identity));
  EXPECT_NE(control_key(std::string(32, 't'), identity), key(identity));
  other = identity;
  other.protocol = 2;
  other.release = "9";
  other.from = 1;
  EXPECT_EQ(key(other), key(identity));
}

TEST(DataHello, ProofsAreBoundToSideRanksEpochConnectionAndBothNonces) {
  const Digest key = random_nonce(), nonce = random_nonce();
  const DataHello hello{.identity = caller().identity(0, Use::data, 1), .nonce = random_nonce()};
  const Digest proof = caller_proof(key, hello, nonce);
  EXPECT_EQ(caller_proof(key, *decode_data_hello(encode(hello)), nonce), proof);
  EXPECT_NE(listener_proof(key, hello, nonce), proof);
  EXPECT_NE(caller_proof(key, hello, random_nonce()), proof);
  EXPECT_NE(caller_proof(random_nonce(), hello, nonce), proof);
  for (auto field : {&Identity::from, &Identity::to, &Identity::epoch, &Identity::connection}) {
    DataHello other = hello;
    ++(other.identity.*field);
    EXPECT_NE(caller_proof(key, other, nonce), proof);
  }
  DataHello other = hello;
  other.nonce = random_nonce();
  EXPECT_NE(caller_proof(key, other, nonce), proof);
}

TEST(Greeting, ARefusalTravelsInWordsAndIsCutToItsLimit) {
  const auto frame_of = [](const Refusal& refusal) {
    const auto bytes = make_refusal(refusal, 3);
    return Frame{.kind = decode_frame_header(std::span(bytes).first<kFrameHeaderBytes>()).kind,
                 .payload = {bytes.begin() + kFrameHeaderBytes, bytes.end()}};
  };
  const auto read = std::get<Refusal>(decode_greeting(frame_of({Reason::version, "too\x1b old"})));
  EXPECT_EQ(read.reason, Reason::version);
  EXPECT_EQ(read.text, "too? old");
  EXPECT_EQ(frame_of({Reason::world, std::string(5000, 'x')}).payload.size(), kGreetingBytes);
  EXPECT_THROW(decode_greeting({.kind = 2, .payload = std::vector<std::byte>(4)}), BadFrame);
  EXPECT_THROW(decode_greeting({.kind = 2, .payload = {}}), BadFrame);
  EXPECT_THROW(decode_greeting({.kind = 1, .payload = {}}), BadFrame);
}

TEST(RefusalLog, OneLineAMinuteWithTheirNumber) {
  RefusalLog log;
  auto now = Clock::now();
  EXPECT_NE(log.add("1.2.3.4:5", "it spoke HTTP", now), std::nullopt);
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(log.add("1.2.3.4:5", "it spoke HTTP", now += std::chrono::milliseconds(1)), std::nullopt);
  EXPECT_EQ(log.due(now), std::nullopt);
  const auto line = log.due(now + RefusalLog::kPause);
  ASSERT_TRUE(line);
  EXPECT_NE(line->find("1000 connections"), std::string::npos) << *line;
  EXPECT_EQ(log.due(now + 3 * RefusalLog::kPause), std::nullopt);
  EXPECT_EQ(log.total(), 1001u);
}

}  // namespace
}  // namespace lockstep::net
