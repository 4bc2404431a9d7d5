// How the ranks of several hosts find each other: rank 0 listens at an address that all know, the others call it.
//
// A caller proves the job's secret, as at every gate (net/gate.hpp), then hands in its card. When all cards are there,
// rank 0 gives everybody all of them; when the meeting fails, the reason. Strangers do not disturb it.
//
//     caller -> rank 0   Card    where I can be reached
//     rank 0 -> caller   Table   all cards, in the order of ranks, or
//                        Failure the reason in words
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/identity.hpp"
#include "net/socket.hpp"
#include "rendezvous/card.hpp"

namespace lockstep::rendezvous {

struct HostMeetingOptions {
  net::Membership self;
  std::chrono::milliseconds timeout{60'000};
  /// Asked several times a second while others are awaited. True: one of them will never come, so give up.
  std::function<bool()> hopeless = {};
};

/// Rank 0's side. Returns all cards by rank. Throws Error(unavailable) that names the missing ranks, and net::Refused
/// when one of another version, or of a world of another size, has come.
std::vector<Card> hold_meeting(const HostMeetingOptions& options, const std::shared_ptr<net::Listener>& listener,
                               const Card& own);

/// Every other rank's side; rank 0 may come later. Throws what rank 0 does, in its words.
std::vector<Card> attend_meeting(const HostMeetingOptions& options, const net::Address& rank_0, const Card& own);

}  // namespace lockstep::rendezvous
