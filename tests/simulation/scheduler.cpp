#include "scheduler.hpp"

#include <algorithm>
#include <exception>

namespace lockstep::simulation {
namespace {

constexpr auto kStep = std::chrono::nanoseconds(200);
constexpr auto kStopPatience = std::chrono::seconds(3);

}  // namespace

// xorshift64*, by Vigna.
std::uint64_t Random::next() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return (state_ * 0x2545'f491'4f6c'dd1dULL) >> 16;
}

void Scheduler::add(const std::function<void()>& body) {
  Process process;
  process.fiber = std::make_unique<Fiber>([body] {
    try {
      body();
    } catch (const Killed&) {  // it has no more say in anything
    }
  });
  processes_.push_back(std::move(process));
}

bool Scheduler::can_run(const Process& process) const {
  if (is_over(process)) return false;
  if (process.stopped && now_ < process.goes_on) return false;
  return !process.asleep || now_ >= process.wakes;
}

bool Scheduler::run() {
  bool in_bounds = true;
  const auto end = now_ + kLongest;
  for (;;) {
    ready_.clear();
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      if (can_run(processes_[i])) ready_.push_back(static_cast<int>(i));
    }
    if (steps_ > kMostSteps || now_ > end) {
      in_bounds = false;
      break;
    }
    if (!ready_.empty()) {
      resume(ready_[random_.below(ready_.size())]);
    } else if (!let_time_pass()) {
      break;
    }
  }
  unwind();
  return in_bounds;
}

// To the next moment at which somebody can run. False when nobody ever will.
bool Scheduler::let_time_pass() {
  auto next = Clock::time_point::max();
  for (const Process& process : processes_) {
    if (is_over(process)) continue;
    auto when = process.asleep ? process.wakes : now_;
    if (process.stopped) when = std::max(when, process.goes_on);
    next = std::min(next, when);
  }
  if (next == Clock::time_point::max()) return false;
  now_ = std::max(now_, next);
  return true;
}

void Scheduler::resume(int process) {
  Process& chosen = at(process);
  chosen.asleep = false;
  chosen.stopped = false;
  current_ = process;
  chosen.fiber->resume();
  current_ = -1;
}

void Scheduler::give_way(Process& self) {
  self.fiber->pause();
  if (self.unwinding) throw Killed{};
}

const Fault* Scheduler::fault_at(const Process& self, Point point) const {
  for (const Fault& fault : faults_) {
    if (fault.process != current_) continue;
    if (fault.anywhere ? fault.count == self.steps
                       : fault.point == point && fault.count == self.at_point[static_cast<std::size_t>(point)])
      return &fault;
  }
  return nullptr;
}

void Scheduler::step(Point point) {
  Process& self = at(current_);
  // A kill is an exception here, and must not leave a destructor that runs because of another one.
  if (self.unwinding || std::uncaught_exceptions() > 0) return;
  ++steps_;
  now_ += kStep;
  ++self.steps;
  ++self.at_point[static_cast<std::size_t>(point)];
  if (const Fault* fault = fault_at(self, point)) {
    if (fault->stop.count() == 0) {
      self.dead = true;
      return give_way(self);
    }
    if (!self.unstoppable) {
      self.stopped = true;
      self.stopped_since = now_;
      self.goes_on = now_ + fault->stop;
      return give_way(self);
    }
  }
  if (random_.one_in(4) || steps_ > kMostSteps) give_way(self);
}

void Scheduler::sleep(std::chrono::nanoseconds limit) {
  Process& self = at(current_);
  if (self.unwinding) return;
  self.asleep = true;
  self.wakes = now_ + limit;
  give_way(self);
}

bool Scheduler::has_died() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const Process& process) { return process.dead; });
}

bool Scheduler::counts_as_stopped(int process) const {
  const Process& other = processes_[static_cast<std::size_t>(process)];
  return other.stopped && now_ < other.goes_on && now_ - other.stopped_since >= kStopPatience;
}

// The memory of the dead stays readable until here, as shared memory does. Now it is given back.
void Scheduler::unwind() {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    if (process.fiber->ended()) continue;
    process.unwinding = true;
    resume(static_cast<int>(i));
  }
}

}  // namespace lockstep::simulation
