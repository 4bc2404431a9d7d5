// How a thread waits: it spins for a moment, then lets others run, then sleeps.
#pragma once

#include <sched.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/cpu.hpp"
#include "engine/contention.hpp"

namespace lockstep::engine {

/// Spinning pays when the peer runs on another core. When ranks outnumber cores it only keeps the peer from running.
class Patience {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Patience(bool crowded) : spins_(crowded ? 1 : 1000), yields_(crowded ? 30 : 100) {}

  /// Sleeps at once.
  static Patience none() { return {0, 0}; }

  /// So long at least, for an answer that comes from far away: to be woken takes longer than to look once more.
  void stay_awake_for(std::chrono::nanoseconds time) { least_ = time; }

  /// How much of its time awake the thread runs, once a wait is not a short one any more.
  void measure() { is_measured_ = true; }
  bool is_measured() const { return is_measured_; }
  /// Since the last time.
  std::optional<Awake> take_measured() { return std::exchange(awake_, std::nullopt); }

  /// Part of what is awaited is there, and the rest comes right behind it: so long for that from now on, once. What
  /// else comes meanwhile does not prolong it: a wait must not be spent awake.
  void stay_awake_for_rest(std::chrono::nanoseconds time) {
    if (rest_until_ == Clock::time_point{}) rest_until_ = Clock::now() + time;
  }

  void reset() {
    tried_ = 0;
    since_ = {};
  }

  /// Waits a little; false when it is time to sleep.
  bool wait_awake() {
    if (is_measured_ && !awake_ && tried_ >= kShort) awake_.emplace();
    if (tried_ >= spins_ + yields_) return wait_longer();
    tried_++ < spins_ ? cpu_relax() : static_cast<void>(sched_yield());
    return true;
  }

 private:
  Patience(int spins, int yields) : spins_(spins), yields_(yields) {}

  bool wait_longer() {
    const bool never = least_ <= least_.zero() && rest_until_ == Clock::time_point{};
    if (never) return false;
    const Clock::time_point now = Clock::now();
    if (since_ == Clock::time_point{}) since_ = now;
    if (now - since_ >= least_ && now >= rest_until_) return false;
    cpu_relax();
    return true;
  }

  static constexpr int kShort = 32;  // looks

  int spins_;
  int yields_;
  int tried_ = 0;
  std::chrono::nanoseconds least_{0};
  Clock::time_point since_{};
  Clock::time_point rest_until_{};
  bool is_measured_ = false;
  std::optional<Awake> awake_;
};

}  // namespace lockstep::engine
