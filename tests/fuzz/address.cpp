#include "net/address.hpp"

#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const auto address = net::Address::parse({reinterpret_cast<const char*>(data), size});
  if (!address) return 0;
  const auto again = net::Address::parse(address->text());
  must(again && *again == *address, "an address is read in another way than it is written");
  return 0;
}
