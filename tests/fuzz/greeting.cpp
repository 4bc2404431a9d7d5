#include "net/greeting.hpp"

#include "target.hpp"

// The first byte is the kind, the rest the payload.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  const auto payload = bytes_of(data, size).subspan(1);
  const auto limit = net::greeting_limit(data[0]);
  if (!limit || payload.size() > *limit) return 0;  // no reader lets it through
  try {
    const auto greeting = net::decode_greeting({.kind = data[0], .payload = {payload.begin(), payload.end()}});
    if (const auto* refusal = std::get_if<net::Refusal>(&greeting)) {
      for (const char c : refusal->text) must(c >= ' ' && c <= '~', "a terminal could be made to obey");
    }
  } catch (const net::BadFrame&) {
  }
  return 0;
}
