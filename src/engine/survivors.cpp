#include "engine/survivors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/core.hpp"

namespace lockstep::engine {
namespace {

using transport::Health;
using transport::Transport;

constexpr auto kPause = std::chrono::milliseconds(10);

// What a seat says. A seat only moves on: taken and confirmed in round 1, taken in round 2 and so on, until it is given
// up for good.
struct Seat {
  enum class State : std::uint64_t { empty = 0, taken = 1, confirmed = 2, given_up = 3 };

  State state = State::empty;
  bool vote = false;
  std::uint64_t round = 0;  // of the last change
  std::uint64_t steps = 0;

  static Seat from(std::uint64_t word) {
    return {.state = static_cast<State>(word & 3),
            .vote = ((word >> 2) & 1) != 0,
            .round = (word >> 3) & 0xffff,
            .steps = word >> 19};
  }
  std::uint64_t word() const {
    return static_cast<std::uint64_t>(state) | (vote ? 4U : 0U) | (round << 3) | (steps << 19);
  }

  bool has_reached(State wanted, std::uint64_t in_round) const {
    if (state == State::given_up || round > in_round) return true;
    return round == in_round && state >= wanted;
  }
};

class Round {
 public:
  Round(Transport& transport, const Ballot& ballot, std::chrono::milliseconds limit)
      : transport_(transport), ballot_(ballot), limit_(limit) {}

  RoundResult hold() {
    for (const auto state : {Seat::State::taken, Seat::State::confirmed}) {
      move_to(state);
      await(state);
    }
    return read();
  }

 private:
  Seat seat(int rank) { return Seat::from(transport_.seat(rank)); }

  void move_to(Seat::State state) {
    const std::uint64_t before = transport_.seat(transport_.rank());
    const Seat after{.state = state, .vote = ballot_.vote, .round = ballot_.round, .steps = ballot_.steps};
    check_own();
    if (!transport_.change_seat(transport_.rank(), before, after.word())) check_own();
  }

  void check_own() {
    if (seat(transport_.rank()).state != Seat::State::given_up) return;
    throw Error(ErrorCode::peer_lost,
                fmt::format("the other ranks went on without rank {}: it had stopped, or did not come to agree within "
                            "{} s. Start it anew to take part again.",
                            transport_.rank(), limit_.count() / 1000));
  }

  void await(Seat::State state) {
    const auto deadline = transport_.now() + limit_;
    while (!is_settled(state)) {
      const bool too_late = transport_.now() >= deadline;
      for (int peer = 0; peer < transport_.size(); ++peer) {
        if (peer == transport_.rank()) continue;
        // The health is asked for first: what the dead had written by then is all that they will have written.
        const bool lost = too_late || transport_.health(peer) != Health::alive;
        const std::uint64_t before = transport_.seat(peer);
        if (lost && !Seat::from(before).has_reached(state, ballot_.round)) give_up(peer, before);
      }
      transport_.sleep(kPause, [&] { return is_settled(state); });
    }
    check_own();
  }

  bool is_settled(Seat::State state) {
    for (int rank = 0; rank < transport_.size(); ++rank) {
      if (!seat(rank).has_reached(state, ballot_.round)) return false;
    }
    return true;
  }

  // Should its owner have been faster, then it is there after all.
  void give_up(int peer, std::uint64_t before) {
    Seat after = Seat::from(before);
    after.state = Seat::State::given_up;
    after.round = ballot_.round;
    transport_.change_seat(peer, before, after.word());
  }

  RoundResult read() {
    RoundResult result{.agreement = {.failed = {}, .survivors = {}, .steps = ballot_.steps}, .unanimous = true};
    for (int rank = 0; rank < transport_.size(); ++rank) {
      const Seat settled = seat(rank);
      if (settled.state == Seat::State::given_up && settled.round <= ballot_.round) {
        result.agreement.failed.push_back(rank);
        continue;
      }
      result.agreement.survivors.push_back(rank);
      result.agreement.steps = std::min(result.agreement.steps, settled.steps);
      // Nobody begins another round after all have said yes.
      result.unanimous = result.unanimous && settled.vote && settled.round == ballot_.round;
    }
    return result;
  }

  Transport& transport_;
  const Ballot ballot_;
  const std::chrono::milliseconds limit_;
};

}  // namespace

RoundResult hold_round(Transport& transport, const Ballot& ballot, std::chrono::milliseconds limit) {
  return Round(transport, ballot, limit).hold();
}

// --- the engine's part

Agreement Core::agree() {
  std::lock_guard lock(survivors_mutex_);
  if (!agreed_) {
    end_for_survivors();
    agreed_ = next_round(/*vote=*/false).agreement;
  }
  return *agreed_;
}

std::shared_ptr<Core> Core::continue_with_survivors(const Meet& meet) {
  Agreement members = agree();
  std::lock_guard lock(survivors_mutex_);
  for (;;) {
    std::shared_ptr<Core> next;
    std::string reason = "another rank could not start it";
    try {
      next = meet(members, round_);
    } catch (const Error& error) {
      reason = error.what();
    }
    // Only when all are there does the new world count, so that nobody goes on in it alone.
    const RoundResult result = next_round(/*vote=*/next != nullptr);
    agreed_ = result.agreement;
    const bool same = result.agreement.survivors == members.survivors;
    if (result.unanimous && same) return next;
    if (next) next->stop();
    if (same) throw Error(ErrorCode::unavailable, "no new engine among the survivors: " + reason);
    members = result.agreement;
  }
}

RoundResult Core::next_round(bool vote) {
  return hold_round(*transport_, {.round = ++round_, .vote = vote, .steps = *steps_at_end_}, options_.start_timeout);
}

// From here on nothing of the old world is under way on this rank.
void Core::end_for_survivors() {
  std::lock_guard lock(mutex_);
  if (is_forked_copy() || stopping_) refuse_if_unusable();
  if (!ended_) progress();
  if (!ended_) {
    transport_->pronounce({.code = ErrorCode::aborted,
                           .rank = transport_->rank(),
                           .text = fmt::format("rank {} asked who is left", transport_->rank())});
    end_world(*transport_->verdict());
  }
  steps_at_end_ = steps_;
}

}  // namespace lockstep::engine
