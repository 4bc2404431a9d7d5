// How a thread waits: it spins for a moment, then lets others run, then sleeps.
#pragma once

#include <sched.h>

#include "base/cpu.hpp"

namespace lockstep::engine {

/// Spinning pays when the peer runs on another core. When ranks outnumber cores it only keeps the peer from running.
class Patience {
 public:
  explicit Patience(bool crowded) : spins_(crowded ? 10 : 1000), yields_(crowded ? 30 : 100) {}

  /// Sleeps at once.
  static Patience none() { return {0, 0}; }

  void reset() { tried_ = 0; }

  /// Waits a little; false when it is time to sleep.
  bool wait_awake() {
    if (tried_ >= spins_ + yields_) return false;
    tried_++ < spins_ ? cpu_relax() : static_cast<void>(sched_yield());
    return true;
  }

 private:
  Patience(int spins, int yields) : spins_(spins), yields_(yields) {}

  int spins_;
  int yields_;
  int tried_ = 0;
};

}  // namespace lockstep::engine
