// What a rank on another host tells all others of itself when they meet.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "net/address.hpp"

namespace lockstep::rendezvous {

struct Card {
  net::Address door;   ///< where it takes the connections of this world
  net::Address again;  ///< where it would listen as rank 0 of a later meeting, of those that are left
  std::string host;    ///< the same for ranks that share a host
};

/// Every card has this size, and three texts of fixed size in it.
inline constexpr std::size_t kCardFieldBytes = 128;
inline constexpr std::size_t kCardBytes = 3 * kCardFieldBytes;

/// Throw Error(invalid_argument) for a host whose name is too long.
std::vector<std::byte> encode(const Card& card);
std::vector<std::byte> encode(const std::vector<Card>& table);

/// Throw net::BadFrame.
Card decode_card(std::span<const std::byte> bytes);
std::vector<Card> decode_table(std::span<const std::byte> bytes, std::size_t ranks);

}  // namespace lockstep::rendezvous
