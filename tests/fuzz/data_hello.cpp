#include "net/data_hello.hpp"

#include <algorithm>

#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const auto bytes = bytes_of(data, size);
  if (const auto hello = net::decode_data_hello(bytes)) {
    must(size == net::kDataHelloBytes && hello->identity.use == net::Use::data, "a hello that is none was accepted");
    const auto again = net::decode_data_hello(net::encode(*hello));
    must(again && again->identity == hello->identity && again->nonce == hello->nonce, "a hello changes on its way");
  }
  if (size == net::kDataAnswerBytes) {
    const auto answer = net::encode(net::decode_data_answer(bytes.first<net::kDataAnswerBytes>()));
    must(std::equal(answer.begin(), answer.end(), bytes.begin()), "an answer changes on its way");
  }
  return 0;
}
