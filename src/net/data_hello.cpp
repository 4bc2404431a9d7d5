#include "net/data_hello.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace lockstep::net {
namespace {

Digest proof(const Digest& key, std::string_view side, const DataHello& hello, const Digest& listener_nonce) {
  const auto bytes = encode(hello);
  std::vector<std::uint8_t> message(side.begin(), side.end());
  std::transform(bytes.begin(), bytes.end(), std::back_inserter(message),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  message.insert(message.end(), listener_nonce.begin(), listener_nonce.end());
  return hmac_sha256(key, message);
}

}  // namespace

std::array<std::byte, kDataHelloBytes> encode(const DataHello& hello) {
  std::array<std::byte, kDataHelloBytes> bytes{};
  const auto identity = encode(hello.identity);
  std::memcpy(bytes.data(), identity.data(), identity.size());
  std::memcpy(bytes.data() + kIdentityBytes, hello.nonce.data(), hello.nonce.size());
  return bytes;
}

std::array<std::byte, kDataAnswerBytes> encode(const DataAnswer& answer) {
  std::array<std::byte, kDataAnswerBytes> bytes{};
  std::memcpy(bytes.data(), answer.nonce.data(), answer.nonce.size());
  std::memcpy(bytes.data() + answer.nonce.size(), answer.proof.data(), answer.proof.size());
  return bytes;
}

std::optional<DataHello> decode_data_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != kDataHelloBytes) return std::nullopt;
  const auto identity = decode_identity(bytes.first<kIdentityBytes>());
  if (!identity || identity->use != Use::data) return std::nullopt;
  DataHello hello{.identity = *identity};
  std::memcpy(hello.nonce.data(), bytes.data() + kIdentityBytes, hello.nonce.size());
  return hello;
}

DataAnswer decode_data_answer(std::span<const std::byte, kDataAnswerBytes> bytes) {
  DataAnswer answer;
  std::memcpy(answer.nonce.data(), bytes.data(), answer.nonce.size());
  std::memcpy(answer.proof.data(), bytes.data() + answer.nonce.size(), answer.proof.size());
  return answer;
}

Digest listener_proof(const Digest& key, const DataHello& hello, const Digest& listener_nonce) {
  return proof(key, "lockstep data listener", hello, listener_nonce);
}

Digest caller_proof(const Digest& key, const DataHello& hello, const Digest& listener_nonce) {
  return proof(key, "lockstep data caller", hello, listener_nonce);
}

}  // namespace lockstep::net
