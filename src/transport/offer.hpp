// What a rank holds out to its peers when it blocks in a simple call and has nothing else under way. It stands for a
// notice: whoever does not look for offers at once finds it later and treats it as one. A peer that makes the same call
// takes the data from it, or where the data lies, and nobody writes or reads more than that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/notice.hpp"

namespace lockstep::transport {

/// A tensor up to this size travels inside the offer.
inline constexpr std::size_t kOfferedBytes = 2048;

/// Of a larger tensor, the offer holds where it lies, or the relay through which its owner passes it on.
struct OfferedPlaces {
  Place input;
  Place output;  ///< kNowhere: the input is a relay
};

struct alignas(128) Offer {
  std::atomic<std::uint64_t> stamp;  ///< which operation; valid once it says so
  std::uint64_t summary;             ///< hash of all that ranks must agree on
  std::byte data[kOfferedBytes];     ///< begins in the line of the stamp: a tiny tensor costs one line
  alignas(128) std::atomic<std::uint32_t> scratch[16];
  NoticeDetail detail;  ///< only for those who find the offer later, or do not agree
};

/// One per rank, in memory that all ranks of the host share, zeroed at first.
struct Board {
  /// As many calls may a rank be ahead of one that has not yet looked at its offers.
  static constexpr std::size_t kOffers = 8;

  std::atomic<std::uint64_t> latest;  ///< stamp of the newest offer; may lag behind it for a moment
  Offer offers[kOffers];

  Offer& at(std::uint64_t number) { return offers[number % kOffers]; }
  const Offer& at(std::uint64_t number) const { return offers[number % kOffers]; }
};

}  // namespace lockstep::transport
