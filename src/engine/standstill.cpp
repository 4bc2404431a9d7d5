// Deadlock: every rank waits, and nothing can go on. It is reported only when it is proven.
//
// A rank *stands still* when a thread of it waits without limit for an operation that has not ended, nothing of its
// engine can go on by itself (nothing runs, is queued, or was announced and not read, and no bucket is about to be
// dissolved), and every other thread of its process waits in the same way or sleeps until a thread of that process
// wakes it (base/census.hpp). Such a rank does nothing any more until a notice or an offer of a peer reaches it, or a
// peer leaves.
//
// The proof takes two looks. After the first, a rank declares that it stands still, under a version: a new number
// whenever anything has changed since its last look. Having read the versions of all ranks that have not left, it looks
// once more; if its own version holds, it confirms what it has read. When all have confirmed the same versions, let t
// be the moment at which the last of them was declared. Every rank made its first look before t and its second after t,
// and nothing changed in between: at t all stood still. Whatever they had sent by t was sent before a version was
// declared that everybody read before the second look, and that look found nothing unread. So nothing was on its way
// either, and nothing will ever be. It does not matter when ranks confirm, nor that others wake and sleep meanwhile.
//
// A thread may sleep because a waiting one holds a lock for a moment (the engine's own, or that of malloc). So between
// the two looks every thread inside the engine must have let go of all locks, also one that the transport has.
//
// A wait in slices, which lets its caller look for signals now and then, counts as one wait: between two looks it may
// come and go, but at each look it must be there.
//
// Looking at a process costs something, and is done only once all ranks say that they wait.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "engine/core.hpp"

namespace lockstep::engine {
namespace {

using transport::Health;
using transport::Standstill;
using transport::Transport;

// A shorter wait is nothing unusual.
constexpr auto kUsualWait = std::chrono::milliseconds(200);
constexpr auto kInterval = std::chrono::milliseconds(40);
// Between two slices of a wait there is nothing to do.
constexpr auto kAbsence = std::chrono::milliseconds(500);

constexpr std::uint64_t kHasLeft = ~std::uint64_t{0};  // in place of a version
constexpr std::size_t kLongestList = 1400;             // of what ranks do, in bytes

// What this rank's peers say.
struct Peers {
  bool all_wait = true;
  bool all_declared = true;
  std::vector<std::uint64_t> versions;  // by rank; this rank's is left open

  std::uint64_t with(int rank, std::uint64_t version) {
    versions[static_cast<std::size_t>(rank)] = version;
    Hasher hasher;
    hasher.add(versions.data(), versions.size() * sizeof versions[0]);
    return hasher.value();
  }
};

Peers ask(Transport& transport) {
  Peers peers;
  peers.versions.resize(static_cast<std::size_t>(transport.size()));
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const Health health = transport.health(peer);
    const Standstill other =
        health == Health::left ? Standstill{.waits = true, .version = kHasLeft} : transport.standstill(peer);
    peers.all_wait &= other.waits && (health == Health::alive || health == Health::left);
    peers.all_declared &= other.version != 0;
    peers.versions[static_cast<std::size_t>(peer)] = other.version;
  }
  return peers;
}

bool all_have_confirmed(Transport& transport, const Peers& peers, std::uint64_t hash) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank() || peers.versions[static_cast<std::size_t>(peer)] == kHasLeft) continue;
    if (transport.standstill(peer).confirmed != hash) return false;
  }
  return true;
}

}  // namespace

Core::Waiter::Waiter(Core& core, const Operation& waited_for) : Wait{.operation = &waited_for}, core_(core) {}

Core::Waiter::~Waiter() {
  if (number == 0) return;
  std::lock_guard lock(core_.mutex_);
  std::erase(core_.waiters_, this);  // an exception has ended the wait
}

void Core::Waiter::resume() {
  std::lock_guard lock(core_.mutex_);
  const auto before = std::find_if(core_.absent_.begin(), core_.absent_.end(),
                                   [](const Wait& wait) { return wait.thread == this_thread(); });
  if (before == core_.absent_.end()) return;
  if (before->operation == operation) static_cast<Wait&>(*this) = *before;
  core_.absent_.erase(before);
  if (number != 0) core_.waiters_.push_back(this);
}

void Core::Waiter::leave(bool for_a_moment) {
  if (rounds == 0) return;
  std::lock_guard lock(core_.mutex_);
  std::erase(core_.waiters_, this);
  const bool was_counted = std::exchange(number, for_a_moment ? number : 0) != 0;
  if (for_a_moment) {
    left = core_.transport_->now();
    core_.absent_.push_back(*this);
  } else if (was_counted && core_.waiters_.empty() && !core_.ended_) {
    core_.standstill_ = {};
    core_.declare();
  }
}

// Called by a thread that waits without limit, between two naps.
void Core::stand_still(Waiter& waiter) {
  const auto now = transport_->now();
  if (waiter.rounds++ == 0) {
    waiter.since = now;
    waiter.thread = this_thread();
  }
  if (ended_ || transport_->size() == 1 || now - waiter.since < kUsualWait) return;
  if (waiter.number == 0) {
    waiter.number = ++waits_;
    waiters_.push_back(&waiter);
  }
  if (now - stood_still_ < kInterval) return;
  stood_still_ = now;
  if (!is_deadlocked()) return;
  transport_->pronounce({.code = ErrorCode::mismatch, .rank = -1, .text = text_of_deadlock()});
  end_world(*transport_->verdict());
}

bool Core::is_deadlocked() {
  Peers peers = ask(*transport_);  // first: what they had sent before is found below
  const bool still = stands_still();
  if (ended_) return false;
  const auto rest = still && peers.all_wait ? rest_of_process() : std::nullopt;
  if (!rest) {
    standstill_ = {.waits = still};
    declare();
    return false;
  }
  if (standstill_.version == 0 || rest_ != *rest) {
    rest_ = *rest;
    own_rounds_before_ = own_rounds_;
    transport_rounds_before_ = transport_->own_rounds();
    for (Waiter* waiter : waiters_) waiter->rounds_before = waiter->rounds;
    standstill_ = {.waits = true, .version = ++versions_, .doing = text_of_waits()};
    declare();
    return false;
  }
  if (!peers.all_declared || !all_went_round()) return false;
  standstill_.confirmed = peers.with(transport_->rank(), standstill_.version);
  declare();
  return all_have_confirmed(*transport_, peers, standstill_.confirmed);
}

// As far as the engine is concerned.
bool Core::stands_still() {
  progress();
  for (int peer = 0; peer < transport_->size() && !ended_; ++peer) {
    if (peer != transport_->rank() && transport_->health(peer) == Health::left) fail_what_needs(peer);
  }
  // Who does not come back soon after a slice has been interrupted. From then on its thread is one like any other.
  std::erase_if(absent_, [&](const Wait& wait) { return transport_->now() - wait.left > kAbsence; });
  if (!absent_.empty()) return false;
  if (ended_ || !queued_.empty() || !running_.empty() || will_dissolve()) return false;
  return std::none_of(waiters_.begin(), waiters_.end(),
                      [](const Waiter* waiter) { return waiter->operation->ended(); });
}

// Ranks that are threads of one process each answer for the threads that wait in them.
std::optional<std::uint64_t> Core::rest_of_process() {
  std::vector<pid_t> known = {own_thread_};
  Hasher seen;
  seen.add(activity_);
  for (const Waiter* waiter : waiters_) {
    known.push_back(waiter->thread);
    seen.add(waiter->number);
  }
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    const auto others = transport_->threads_here(peer);
    known.insert(known.end(), others.begin(), others.end());
  }
  const auto rest = census_(known);
  if (!rest) return std::nullopt;
  seen.add(*rest);
  return seen.value();
}

// Two rounds later a thread has been outside of all locks at least once.
bool Core::all_went_round() const {
  if (thread_.joinable() && own_rounds_ < own_rounds_before_ + 2) return false;
  if (transport_rounds_before_ && *transport_->own_rounds() < *transport_rounds_before_ + 2) return false;
  return std::all_of(waiters_.begin(), waiters_.end(),
                     [](const Waiter* waiter) { return waiter->rounds >= waiter->rounds_before + 2; });
}

void Core::declare() {
  std::vector<pid_t> threads = {own_thread_};
  for (const Waiter* waiter : waiters_) threads.push_back(waiter->thread);
  transport_->declare(standstill_, threads);
}

std::string Core::text_of_waits() const {
  std::vector<std::string> waits;
  for (const Waiter* waiter : waiters_) {
    const auto* gathering = matcher_.find(waiter->operation->notice.head.id);
    const auto missing = gathering != nullptr ? gathering->missing() : std::vector<int>{};
    waits.push_back(text_of(*waiter->operation));
    if (!missing.empty())
      waits.back() += fmt::format(" for rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }
  return fmt::format("{}", fmt::join(waits, " and in "));
}

// The same on whichever rank says it first.
std::string Core::text_of_deadlock() {
  std::map<std::string, std::vector<int>> ranks_by_wait;
  for (int rank = 0; rank < transport_->size(); ++rank) {
    if (rank == transport_->rank() || transport_->health(rank) != Health::left)
      ranks_by_wait[transport_->doing(rank)].push_back(rank);
  }
  std::map<int, std::string> in_order;
  for (const auto& [doing, ranks] : ranks_by_wait) {
    in_order[ranks.front()] = fmt::format("rank{} {} wait{} in {}", ranks.size() == 1 ? "" : "s",
                                          fmt::join(ranks, ", "), ranks.size() == 1 ? "s" : "", doing);
  }
  std::string list;
  std::size_t left = in_order.size();
  for (const auto& [first, text] : in_order) {
    if (list.size() + text.size() > kLongestList) break;
    list += list.empty() ? text : "; " + text;
    --left;
  }
  if (left > 0) list += fmt::format("; {} more wait in other operations", left);
  return fmt::format(
      "deadlock: {}. All ranks wait and none can go on. Likely cause: the ranks took different paths in the program, "
      "or "
      "block in operations in a different order. Make every rank submit what the others wait for; where the order "
      "cannot be the same, submit first and wait later.",
      list);
}

}  // namespace lockstep::engine
