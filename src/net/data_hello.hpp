// How a plain data connection is authenticated, with the key that both ranks exported from their control channel:
//
//     caller -> listener   DataHello     who I am (identity.hpp), my nonce
//     listener -> caller   DataAnswer    my nonce, the listener's proof
//     caller -> listener   the caller's proof
//
// A proof is an HMAC over the side that gives it, the whole hello and both nonces. Every part has a fixed size. A
// recorded hello is worth nothing, because the listener's nonce is another each time; nor is a recorded answer.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "net/identity.hpp"
#include "net/proof.hpp"

namespace lockstep::net {

/// With which that key is exported.
inline constexpr std::string_view kDataKeyLabel = "EXPORTER-lockstep-data";

struct DataHello {
  Identity identity;
  Digest nonce = {};
};

struct DataAnswer {
  Digest nonce = {};
  Digest proof = {};
};

inline constexpr std::size_t kDataHelloBytes = kIdentityBytes + sizeof(Digest);
inline constexpr std::size_t kDataAnswerBytes = 2 * sizeof(Digest);

std::array<std::byte, kDataHelloBytes> encode(const DataHello& hello);
std::array<std::byte, kDataAnswerBytes> encode(const DataAnswer& answer);

/// nullopt when it is none, or not one for data.
std::optional<DataHello> decode_data_hello(std::span<const std::byte> bytes);
DataAnswer decode_data_answer(std::span<const std::byte, kDataAnswerBytes> bytes);

Digest listener_proof(const Digest& key, const DataHello& hello, const Digest& listener_nonce);
Digest caller_proof(const Digest& key, const DataHello& hello, const Digest& listener_nonce);

}  // namespace lockstep::net
