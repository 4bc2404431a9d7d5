#include "rendezvous/card.hpp"

#include <cstring>

#include "lockstep/error.hpp"
#include "net/frame.hpp"

namespace lockstep::rendezvous {
namespace {

// A text that was cut could be that of another host.
void put_field(std::vector<std::byte>& to, const std::string& text) {
  if (text.size() >= kCardFieldBytes) {
    throw Error(ErrorCode::invalid_argument, "the name of this host has " + std::to_string(text.size()) +
                                                 " characters, of which ranks can tell each " + "other " +
                                                 std::to_string(kCardFieldBytes - 1) +
                                                 ". Set LOCKSTEP_HOST_ID to a shorter one.");
  }
  std::byte field[kCardFieldBytes] = {};
  std::memcpy(field, text.data(), text.size());
  to.insert(to.end(), field, field + kCardFieldBytes);
}

std::string field_at(std::span<const std::byte> card, std::size_t index) {
  const auto* text = reinterpret_cast<const char*>(card.data() + index * kCardFieldBytes);
  const std::size_t length = ::strnlen(text, kCardFieldBytes);
  if (length == kCardFieldBytes) throw net::BadFrame("a card with a text that has no end");
  return {text, length};
}

net::Address address_at(std::span<const std::byte> card, std::size_t index) {
  const auto address = net::Address::parse(field_at(card, index));
  if (!address || address->is_wildcard()) throw net::BadFrame("a card without an address");
  return *address;
}

}  // namespace

std::vector<std::byte> encode(const Card& card) {
  std::vector<std::byte> bytes;
  for (const std::string& text : {card.door.text(), card.again.text(), card.host}) put_field(bytes, text);
  return bytes;
}

std::vector<std::byte> encode(const std::vector<Card>& table) {
  std::vector<std::byte> bytes;
  for (const Card& card : table) {
    const auto one = encode(card);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return bytes;
}

Card decode_card(std::span<const std::byte> bytes) {
  if (bytes.size() != kCardBytes) throw net::BadFrame("a card of another size");
  return {.door = address_at(bytes, 0), .again = address_at(bytes, 1), .host = field_at(bytes, 2)};
}

std::vector<Card> decode_table(std::span<const std::byte> bytes, std::size_t ranks) {
  if (bytes.size() != ranks * kCardBytes) throw net::BadFrame("a table of another size");
  std::vector<Card> table;
  for (; !bytes.empty(); bytes = bytes.subspan(kCardBytes)) table.push_back(decode_card(bytes.first(kCardBytes)));
  return table;
}

}  // namespace lockstep::rendezvous
