// How two processes show each other that they hold the job's secret, without sending it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::net {

using Digest = std::array<std::uint8_t, 32>;

/// A key for one use, by HKDF-SHA256. Different labels give unrelated keys.
Digest derive_key(std::string_view secret, std::string_view label);

Digest hmac_sha256(const Digest& key, std::span<const std::uint8_t> message);

/// Takes the same time whether or not they are equal.
bool equal(const Digest& a, const Digest& b);

/// From the system's generator.
Digest random_nonce();

}  // namespace lockstep::net
