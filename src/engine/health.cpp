// What happens while something waits and nothing comes: a peer has died, was stopped, has left, or is merely late.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "engine/core.hpp"

namespace lockstep::engine {
namespace {

using transport::Health;

constexpr auto kHealthInterval = std::chrono::milliseconds(10);
constexpr auto kLastMoment = std::chrono::milliseconds(150);

// What has happened to a rank, and what its user may do.
struct Loss {
  const char* what;
  const char* next_step;
};

Loss words_of(Health health) {
  switch (health) {
    case Health::stopped:
      return {"the process is stopped and did not go on for several seconds",
              "Somebody sent it SIGSTOP, or it reads from a terminal in the background."};
    case Health::unreachable:
      return {"its host has not answered for several seconds",
              "Look at the network between the hosts, and whether that host still runs."};
    default:
      return {"the process died", "Look at the output of rank {} for the cause."};
  }
}

}  // namespace

// Called while something waits. A peer that died or was stopped ends the world; one that left in good order ends only
// the operations that still need it.
void Core::look_after_peers() {
  const auto now = transport_->now();
  if (now - looked_after_ < kHealthInterval || ended_) return;
  looked_after_ = now;
  for (int peer = 0; peer < transport_->size() && !ended_; ++peer) {
    if (peer == transport_->rank()) continue;
    const Health health = transport_->health(peer);
    if (health == Health::left) fail_what_needs(peer);
    const bool may_live = health == Health::stopped || health == Health::unreachable;
    if (may_live || (health == Health::dead && !may_end_without(peer))) lose(peer, health);
  }
  if (!ended_) report_stalls();
}

// What everybody had done before it died is complete all the same, and as long as nothing waits for the dead, there is
// nothing to fail. Where it had announced all that is pending, its part may be done, and only the living are late: they
// get a moment.
bool Core::may_end_without(int peer) {
  progress();
  if (pending_.empty() || ended_) return true;
  const auto noticed = deaths_.emplace(peer, transport_->now()).first->second;
  const bool is_missing = std::any_of(pending_.begin(), pending_.end(), [&](const auto& entry) {
    const auto* gathering = matcher_.find(entry.first);
    return gathering != nullptr && gathering->members->index_of(peer) && !gathering->has(peer);
  });
  return !is_missing && transport_->now() - noticed < kLastMoment;
}

void Core::lose(int peer, Health health) {
  progress();
  if (pending_.empty() || ended_) return;
  const auto [what, next_step] = words_of(health);
  transport_->pronounce(
      {.code = ErrorCode::peer_lost,
       .rank = peer,
       .text = fmt::format("lost rank {} (pid {}): {}. Noticed by rank {} while waiting in {}. {}", peer,
                           transport_->process_of(peer), what, transport_->rank(), text_of(*pending_.begin()->second),
                           fmt::format(fmt::runtime(next_step), peer))});
  end_world(*transport_->verdict());
}

void Core::fail_what_needs(int peer) {
  progress();  // what it announced before it left still counts, and so does a verdict, for which it may have left
  if (ended_) return;
  std::vector<OperationPtr> doomed;
  for (const auto& [id, operation] : pending_) {
    const auto* gathering = matcher_.find(id);
    if (gathering != nullptr && gathering->members->index_of(peer) && !gathering->has(peer) &&
        !goes_without(*operation, peer))
      doomed.push_back(operation);
  }
  for (const OperationPtr& operation : doomed) {
    fail(operation, Error(ErrorCode::peer_lost,
                          fmt::format("lost rank {} (pid {}): it stopped its engine, but {} on rank {} still needs "
                                      "it. Likely cause: the ranks make a different number of calls (unequal data?).",
                                      peer, transport_->process_of(peer), text_of(*operation), transport_->rank())));
  }
}

void Core::report_stalls() {
  const auto now = transport_->now();
  for (const auto& [id, operation] : pending_) {
    const auto waited = now - operation->submitted;
    const bool to_report = waited >= options_.stall_warning && !operation->stall_reported;
    if (!to_report && waited < options_.stall_limit) continue;
    const auto* gathering = matcher_.find(id);
    const auto missing = gathering != nullptr ? gathering->missing() : std::vector<int>{};
    const double seconds = std::chrono::duration<double>(waited).count();
    const std::string what = missing.empty()
                                 ? fmt::format("{} is not complete after {:.0f} s, though all ranks have submitted it",
                                               text_of(*operation), seconds)
                                 : fmt::format("{} has waited {:.0f} s for rank{} {}", text_of(*operation), seconds,
                                               missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    if (waited >= options_.stall_limit) {
      transport_->pronounce(
          {.code = ErrorCode::timeout,
           .rank = missing.empty() ? -1 : missing.front(),
           .text = what +
                   ". The limit is LOCKSTEP_STALL_LIMIT. Likely cause: that rank took another path in the program."});
      end_world(*transport_->verdict());
      return;
    }
    operation->stall_reported = true;
    record_waiting(*operation, missing);
    recorder_.counters().stalled();
    log::warn(transport_->rank(), what);
  }
}

}  // namespace lockstep::engine
