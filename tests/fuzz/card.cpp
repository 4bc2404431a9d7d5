#include "rendezvous/card.hpp"

#include "net/frame.hpp"
#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  try {
    const auto table = rendezvous::decode_table(bytes_of(data, size), size / rendezvous::kCardBytes);
    for (const rendezvous::Card& card : table) {
      must(!card.door.is_wildcard() && !card.again.is_wildcard(), "a rank would be called at no address");
      const rendezvous::Card again = rendezvous::decode_card(rendezvous::encode(card));
      must(again.door == card.door && again.again == card.again && again.host == card.host, "a card has changed");
    }
  } catch (const net::BadFrame&) {
  }
  return 0;
}
