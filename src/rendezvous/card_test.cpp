#include "rendezvous/card.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/error.hpp"
#include "net/frame.hpp"

namespace lockstep::rendezvous {
namespace {

Card card_of(const std::string& host) {
  return {.door = *net::Address::parse("192.0.2.1:1"), .again = *net::Address::parse("[::1]:65535"), .host = host};
}

TEST(Card, ArrivesAsItWasSent) {
  const std::string longest(kCardFieldBytes - 1, 'h');
  const Card card = decode_card(encode(card_of(longest)));
  EXPECT_EQ(card.door, card_of("").door);
  EXPECT_EQ(card.again, card_of("").again);
  EXPECT_EQ(card.host, longest);
}

TEST(Card, IsNotCutShort) {
  const std::string longer(kCardFieldBytes, 'h');
  EXPECT_THROW(encode(card_of(longer)), Error);
}

TEST(Card, WithATextThatHasNoEndIsRefused) {
  auto bytes = encode(card_of("host"));
  std::fill(bytes.end() - kCardFieldBytes, bytes.end(), std::byte{'h'});
  EXPECT_THROW(decode_card(bytes), net::BadFrame);
}

}  // namespace
}  // namespace lockstep::rendezvous
