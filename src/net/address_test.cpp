#include "net/address.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include "lockstep/error.hpp"
#include "net/socket.hpp"

namespace lockstep::net {
namespace {

TEST(Address, IsReadAndWrittenTheSameWay) {
  for (const char* text : {"127.0.0.1:80", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:8080", "[2001:db8::1]:1"}) {
    const auto address = Address::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), text);
  }
}

TEST(Address, RefusesWhatIsNone) {
  using namespace std::string_view_literals;
  for (const auto text : {""sv, ":"sv, "127.0.0.1"sv, "127.0.0.1:"sv, "127.0.0.1:65536"sv, "127.0.0.1:-1"sv,
                          "127.0.0.1: 1"sv, "127.0.0.1:1x"sv, "localhost:1"sv, "::1:80"sv, "[::1]"sv, "[::1:80"sv,
                          "[]:1"sv, "[127.0.0.1]:1"sv, "127.0.0.1\0:1"sv, "[fe80::1%eth0]:1"sv}) {
    EXPECT_FALSE(Address::parse(text)) << text;
  }
  EXPECT_FALSE(Address::parse(std::string(100'000, '1') + ":1"));
}

TEST(Address, OfAnInterface) {
  EXPECT_EQ(Address::of_interface("lo").text(), "127.0.0.1:0");
  try {
    Address::of_interface("no-such-card");
    FAIL() << "there is one";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_NE(std::string(error.what()).find("lo"), std::string::npos) << error.what();
  }
}

TEST(Address, ThatOthersReachIsNotLoopback) {
  try {
    EXPECT_FALSE(Address::outward().is_loopback());
  } catch (const Error& error) {  // a machine without a network
    EXPECT_NE(std::string(error.what()).find("LOCKSTEP_INTERFACE"), std::string::npos) << error.what();
  }
}

TEST(Listener, ListensOnOneInterfaceAndAPortOfTheSystemsChoice) {
  const Listener listener(Address::loopback());
  EXPECT_NE(listener.address().port(), 0);
  EXPECT_EQ(listener.address().text().substr(0, 10), "127.0.0.1:");
  for (const char* everywhere : {"0.0.0.0:0", "[::]:0"})
    EXPECT_THROW(Listener(Address::parse(everywhere).value()), Error) << everywhere;
}

TEST(Listener, IsHeardOnlyWhileItIsOpenAndKeepsItsPort) {
  Listener listener(Address::loopback());
  const auto call = [&] { return Socket::connect(listener.address(), Clock::now() + std::chrono::seconds(5)); };
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(call(), NobodyListens);
    EXPECT_THROW(Listener(listener.address()).open(), Error) << "the port is not its own";
    listener.open();
    EXPECT_NO_THROW(call());
    EXPECT_TRUE(wait_for(listener.fd(), POLLIN, Clock::now() + std::chrono::seconds(5)));
    EXPECT_TRUE(listener.accept());
    listener.close();
  }
}

TEST(Socket, SaysThatNobodyListens) {
  const Address nobody = Listener(Address::loopback()).address();  // closed again at once
  try {
    Socket::connect(nobody, Clock::now() + std::chrono::seconds(5));
    FAIL() << "somebody answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_NE(std::string(error.what()).find(nobody.text()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::net
