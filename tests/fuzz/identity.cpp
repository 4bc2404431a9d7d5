#include "net/identity.hpp"

#include <cstring>

#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const auto identity = net::decode_identity(bytes_of(data, size));
  if (!identity) return 0;
  must(size == net::kIdentityBytes, "an identity of another size was accepted");
  must(identity->release.size() <= 16, "a release is longer than its field");
  must(net::decode_identity(net::encode(*identity)) == identity, "an identity changes on its way");
  const net::Membership listener{.secret = "s", .epoch = 3, .rank = 1, .size = 4, .release = "1.0"};
  if (const auto refusal = net::judge(*identity, listener)) {
    must(!refusal->text.empty(), "a refusal without words");
  } else {
    must(identity->epoch == 3 && identity->to == 1 && identity->from < 4, "a caller that does not fit was accepted");
  }
  return 0;
}
