// Runs simulated processes in an order that follows from a seed, under a clock of its own, and kills or stops them at
// chosen points.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fiber.hpp"

namespace lockstep::simulation {

/// Where a process can lose its turn, or its life.
enum class Point {
  program,
  post,
  ring,
  next,
  release,
  sleep,
  health,
  pronounce,
  message,
  access,
  seat,
  leave,
  meet,
  declare
};

/// What befalls a process when it comes to `point` for the `count`-th time.
struct Fault {
  int process = 0;
  bool anywhere = true;  ///< count all points, not only `point`
  Point point = Point::program;
  unsigned count = 1;
  /// Zero: it is killed. Otherwise it is stopped, and goes on after that time.
  std::chrono::milliseconds stop{0};
};

/// A small, fast generator: the schedule is a function of its seed on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e37'79b9'7f4a'7c15ULL + 1) {}

  std::uint64_t next();
  /// From 0 to `limit` - 1.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool one_in(std::uint64_t number) { return below(number) == 0; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t state_;
};

class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Scheduler(std::uint64_t seed) : random_(seed) {}

  /// Processes are numbered from 0 in this order. Exceptions other than a kill must not leave the body.
  void add(const std::function<void()>& body);
  void add(const Fault& fault) { faults_.push_back(fault); }

  /// Runs until every process has ended or is dead. False when that takes more than the bounds below.
  bool run();

  static constexpr std::uint64_t kMostSteps = 3'000'000;
  static constexpr std::chrono::hours kLongest{3};

  Clock::time_point now() const { return now_; }

  // --- for the process that runs

  int current() const { return current_; }
  void step(Point point);
  void sleep(std::chrono::nanoseconds limit);
  void wake(int process) { at(process).asleep = false; }
  /// True when the calling process is dead already and merely gives its memory back.
  bool is_unwinding() const { return current_ >= 0 && processes_[static_cast<std::size_t>(current_)].unwinding; }

  bool is_dead(int process) const { return processes_[static_cast<std::size_t>(process)].dead; }
  bool has_died() const;
  /// Stopped for as long as the engine takes to say so.
  bool counts_as_stopped(int process) const;
  /// A process that must not be stopped just now, only killed.
  void forbid_stops(bool forbidden) { at(current_).unstoppable = forbidden; }

 private:
  struct Killed {};

  struct Process {
    std::unique_ptr<Fiber> fiber;
    bool dead = false;
    bool unwinding = false;
    bool asleep = false;
    bool stopped = false;
    bool unstoppable = false;
    Clock::time_point wakes{};          // when asleep
    Clock::time_point stopped_since{};  // when stopped
    Clock::time_point goes_on{};
    unsigned steps = 0;
    unsigned at_point[16] = {};
  };

  Process& at(int process) { return processes_[static_cast<std::size_t>(process)]; }
  bool can_run(const Process& process) const;
  bool is_over(const Process& process) const { return process.dead || process.fiber->ended(); }
  bool let_time_pass();
  void resume(int process);
  void give_way(Process& self);
  const Fault* fault_at(const Process& self, Point point) const;
  void unwind();

  Random random_;
  std::vector<Process> processes_;
  std::vector<Fault> faults_;
  std::vector<int> ready_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::uint64_t steps_ = 0;
  int current_ = -1;
};

}  // namespace lockstep::simulation
