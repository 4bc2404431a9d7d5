// How the ranks that are left of a failed world agree on who they are.
//
// Every rank has a seat, a word that all can see and change (Transport::seat). A round has two halves: first each rank
// takes its seat, then, when every seat is taken or given up, it confirms. Whoever finds a peer dead, stopped, gone or
// too late gives that seat up with a compare-and-swap, which either wins against the peer's own or loses. So every seat
// is settled once, and for everybody; when all are, all read the same. Nobody coordinates, and it does not matter who
// dies meanwhile: the set of the failed merely grows. A rank that wakes up later finds its seat given up.
#pragma once

#include <chrono>
#include <cstdint>

#include "lockstep/engine.hpp"
#include "transport/transport.hpp"

namespace lockstep::engine {

struct Ballot {
  std::uint32_t round = 1;  ///< from 1; each rank takes part in all rounds, in order
  bool vote = false;
  std::uint64_t steps = 0;  ///< the same in all rounds
};

struct RoundResult {
  Agreement agreement;
  bool unanimous = false;  ///< every survivor voted yes
};

/// Takes part in one round. Each half waits at most `limit` for ranks that live but do not come.
/// Throws Error(peer_lost) when the others went on without this rank.
RoundResult hold_round(transport::Transport& transport, const Ballot& ballot, std::chrono::milliseconds limit);

}  // namespace lockstep::engine
