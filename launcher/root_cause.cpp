#include "root_cause.hpp"

#include <csignal>
#include <tuple>

namespace lockstep::launcher {

namespace {

/// A process aborts itself, or writes to a peer that is gone: that is its own reaction, like an exit code.
bool is_reaction(int signal_number) { return signal_number == SIGABRT || signal_number == SIGPIPE; }

/// Signals with which whole jobs are ended. The launcher's own may still be on its way.
bool ends_jobs(int signal_number) {
  return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP;
}

bool is_reported_lost(int rank, const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& other : outcomes) {
    if (other.rank != rank && has_failed(other) && other.lost_ranks.count(rank) != 0) return true;
  }
  return false;
}

/// A stopped rank is no failure by itself, only when its peers have given it up.
bool is_candidate(const RankOutcome& outcome, const std::vector<RankOutcome>& outcomes) {
  if (outcome.state == RankState::stopped) return is_reported_lost(outcome.rank, outcomes);
  return has_failed(outcome);
}

bool follows_another(const RankOutcome& outcome, const std::vector<RankOutcome>& outcomes) {
  for (const int lost : outcome.lost_ranks) {
    if (lost == outcome.rank || lost < 0 || static_cast<std::size_t>(lost) >= outcomes.size()) continue;
    if (is_candidate(outcomes[static_cast<std::size_t>(lost)], outcomes)) return true;
  }
  return false;
}

/// Smaller is stronger.
int strength(const RankOutcome& outcome) {
  switch (outcome.state) {
    case RankState::not_started:
    case RankState::lost:
      return 0;
    case RankState::killed:
      return is_reaction(outcome.code) ? 3 : 1;
    case RankState::stopped:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

bool has_failed(const RankOutcome& outcome) {
  if (outcome.told_to_end) return false;
  return outcome.state == RankState::not_started || outcome.state == RankState::lost ||
         outcome.state == RankState::killed || (outcome.state == RankState::exited && outcome.code != 0);
}

bool is_certain_cause(const RankOutcome& outcome) {
  if (!has_failed(outcome) || !outcome.lost_ranks.empty() || strength(outcome) > 1) return false;
  return outcome.state != RankState::killed || !ends_jobs(outcome.code);
}

std::optional<std::size_t> choose_root_cause(const std::vector<RankOutcome>& outcomes) {
  std::optional<std::size_t> best;
  const auto key = [&](std::size_t index) {
    const RankOutcome& outcome = outcomes[index];
    return std::make_tuple(follows_another(outcome, outcomes), strength(outcome), outcome.order);
  };
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (!is_candidate(outcomes[i], outcomes)) continue;
    if (!best || key(i) < key(*best)) best = i;
  }
  return best;
}

}  // namespace lockstep::launcher
