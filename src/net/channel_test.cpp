// Members of a job that call each other: control channels, data connections, and refusals in words.
#include <gtest/gtest.h>

#include <thread>

#include "net/gate_keeper_test.hpp"

namespace lockstep::net {
namespace {

// What a rank that is turned away gets to know; the listener learns the same.
Reason reason_for(const Membership& member, std::string& text) {
  GateKeeper keeper;
  try {
    call_control(TlsContext(), member, keeper.call());
  } catch (const Refused& refused) {
    const TurnedAway told = keeper.turned_away();
    EXPECT_EQ(told.refusal.reason, refused.reason());
    EXPECT_EQ(told.refusal.text, refused.what());
    EXPECT_EQ(keeper.strangers(), 0u);
    EXPECT_EQ(keeper.arrived(), 0u);
    text = refused.what();
    return refused.reason();
  }
  throw std::runtime_error("it was let in");
}

TEST(Channel, AMemberComesIn) {
  GateKeeper keeper;
  auto called = call_control(TlsContext(), GateKeeper::member(2), keeper.call());
  Arrival arrival = keeper.arrival();
  EXPECT_EQ(arrival.identity, GateKeeper::member(2).identity(0, Use::control));
  EXPECT_EQ(arrival.data_key, called.data_key);
  EXPECT_TRUE(converse(*called.stream, *arrival.stream));
  EXPECT_TRUE(converse(*called.stream, *arrival.stream, 1 << 20));
  EXPECT_EQ(keeper.strangers(), 0u);
}

TEST(Channel, EveryChannelHasItsOwnDataKey) {
  GateKeeper keeper;
  const TlsContext tls;
  auto first = call_control(tls, GateKeeper::member(2), keeper.call());
  auto second = call_control(tls, GateKeeper::member(2), keeper.call());
  EXPECT_NE(first.data_key, second.data_key);
}

TEST(Channel, DataConnectionsPlainAndEncrypted) {
  GateKeeper keeper;
  const TlsContext tls;
  const Membership self = GateKeeper::member(1);
  const auto control = call_control(tls, self, keeper.call());
  EXPECT_EQ(keeper.arrival().identity.use, Use::control);
  auto plain = call_data(self, keeper.call(), 1, control.data_key);
  Arrival first = keeper.arrival();
  EXPECT_EQ(first.identity, self.identity(0, Use::data, 1));
  EXPECT_TRUE(converse(*plain, *first.stream, 1 << 20));
  auto encrypted = call_encrypted_data(tls, self, keeper.call(), 2, control.data_key);
  Arrival second = keeper.arrival();
  EXPECT_EQ(second.identity, self.identity(0, Use::data, 2));
  EXPECT_TRUE(converse(*encrypted, *second.stream, 1 << 20));
  EXPECT_EQ(keeper.strangers(), 0u);
}

TEST(Channel, APlainDataConnectionIsRefusedWhereDataIsEncrypted) {
  GateKeeper keeper({}, true);
  const Membership self = GateKeeper::member(1);
  const TlsContext tls;
  const auto control = call_control(tls, self, keeper.call());
  EXPECT_THROW(call_data(self, keeper.call(in(std::chrono::milliseconds(200))), 1, control.data_key), Error);
  EXPECT_GE(keeper.strangers(), 1u);
  call_encrypted_data(tls, self, keeper.call(), 1, control.data_key);
}

TEST(Channel, TheKeyIsChangedAfterManyBytes) {
  Listener listener(Address::loopback());
  listener.open();
  const Digest key = random_nonce();
  const TlsContext tls;
  auto caller =
      TlsStream::call(tls, Socket::connect(listener.address(), soon()), std::vector<std::byte>(8), key, 10'000);
  ASSERT_TRUE(wait_for(listener.fd(), POLLIN, soon()));
  auto called = TlsStream::accept(tls, std::move(*listener.accept()), [&](auto) { return key; });
  for (bool done = false, done_too = false; !done || !done_too;) {
    done = done || caller->handshake();
    done_too = done_too || called->handshake();
  }
  EXPECT_EQ(caller->export_key("EXPORTER-test"), called->export_key("EXPORTER-test"));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(converse(*caller, *called, 4'000)) << i;
  ASSERT_TRUE(converse(*caller, *called, 2 << 20));
}

TEST(Channel, RefusalsAreInWords) {
  std::string text;
  Membership other = GateKeeper::member(1);
  other.protocol = 99;
  other.release = "9.9";
  EXPECT_EQ(reason_for(other, text), Reason::version);
  EXPECT_NE(text.find("rank 0 has Lockstep 1.0 (protocol 1), rank 1 at 127.0.0.1 has Lockstep 9.9 (protocol 99)"),
            text.npos)
      << text;

  other = GateKeeper::member(1);
  other.epoch = 2;
  EXPECT_EQ(reason_for(other, text), Reason::epoch);
  EXPECT_NE(text.find("it is in epoch 2, the job is in epoch 3"), text.npos) << text;

  other = GateKeeper::member(1);
  other.job = job_tag("another");
  EXPECT_EQ(reason_for(other, text), Reason::job);

  other = GateKeeper::member(1);
  other.size = 2;
  EXPECT_EQ(reason_for(other, text), Reason::world);
}

TEST(Channel, AnotherSecretIsNoKey) {
  GateKeeper keeper;
  Membership other = GateKeeper::member(1);
  other.secret = std::string(32, 'x');
  try {
    call_control(TlsContext(), other, keeper.call());
    FAIL() << "it was let in";
  } catch (const HandshakeFailed& failure) {
    EXPECT_NE(std::string(failure.what()).find("do not hold the same secret"), std::string::npos) << failure.what();
  }
  keeper.await_strangers(1);
  EXPECT_EQ(keeper.arrived(), 0u);
}

TEST(Channel, ACallerDoesNotTrustAListenerWithoutTheSecret) {
  GateKeeper keeper;  // its secret is not the caller's: it stands for whoever listens in a rank's place
  Membership self = GateKeeper::member(1);
  EXPECT_THROW(call_data(self, keeper.call(in(std::chrono::milliseconds(200))), 0, random_nonce()), Error);
  const auto control = call_control(TlsContext(), self, keeper.call());
  EXPECT_THROW(call_data(self, keeper.call(), 0, random_nonce()), HandshakeFailed);
  EXPECT_THROW(call_encrypted_data(TlsContext(), self, keeper.call(), 0, random_nonce()), HandshakeFailed);
}

}  // namespace
}  // namespace lockstep::net
