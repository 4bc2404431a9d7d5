// Whether others want the cores on which this engine's threads wait awake.
//
// To stay awake for an answer from another host pays where a core would else be idle. Where other ranks, or anything
// else, want to run there, it takes the time from them; and often it is their answer that is awaited. How many ranks
// share a machine cannot always be known (containers, several hosts on one machine, other programs), so it is measured:
// of the time that a thread stays awake, how much did the system give to others?
#pragma once

#include <time.h>

#include <chrono>

namespace lockstep::engine {

/// A stop-watch: how long a thread is awake, and how long of that it runs.
class Awake {
  using Clock = std::chrono::steady_clock;

 public:
  using Time = std::chrono::nanoseconds;

  Time time() const { return Clock::now() - began_; }
  Time time_on_core() const { return so_far() - ran_; }

 private:
  static Time so_far() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + Time(time.tv_nsec);
  }

  Clock::time_point began_ = Clock::now();
  Time ran_ = so_far();
};

/// REQUIRES a lock of its owner's.
class Contention {
 public:
  using Time = std::chrono::nanoseconds;

  /// To be asked before a wait: whether it should rather sleep. Every now and then one stays awake all the same, to
  /// find out whether that is still so.
  bool is_wanted_by_others() {
    if (!wanted_) return false;
    if (waits_++ < kWaitsUntilNextTry) return true;
    waits_ = 0;
    return false;
  }

  /// A thread has stayed awake for `awake`, and `ran` all of it, or less.
  void note(Time awake, Time ran) {
    awake_ += awake;
    taken_ += awake > ran ? awake - ran : Time{0};
    if (awake_ < kLeastKnown) return;
    wanted_ = taken_ >= awake_ / kMuch;
    while (awake_ > kWindow) {
      awake_ /= 2;
      taken_ /= 2;
    }
  }

 private:
  static constexpr Time kLeastKnown = std::chrono::milliseconds(1);
  static constexpr Time kWindow = std::chrono::milliseconds(10);  // what was before counts for less and less
  static constexpr int kMuch = 2;  // a half: who shares a core with one other that never sleeps loses that
  static constexpr int kWaitsUntilNextTry = 32;

  Time awake_{0};
  Time taken_{0};
  bool wanted_ = false;
  int waits_ = 0;
};

}  // namespace lockstep::engine
