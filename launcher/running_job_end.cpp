#include <fmt/core.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "processes.hpp"
#include "report.hpp"
#include "running_job.hpp"

namespace lockstep::launcher {

namespace {

using std::chrono::milliseconds;

// Longer than kJudging if a rank reports the loss of one that is still there, and may be about to say why (Python takes
// its time to leave), but short enough for an exception to be on the screen within 3 s.
constexpr milliseconds kAwaitLostRank{1500};
// Longer still for a process that is already on its way out: freeing its memory takes the kernel 33 ms per GB.
constexpr milliseconds kAwaitExiting{5000};
// A signal that comes again so soon has come from the same event: `timeout` sends its SIGTERM twice, a closed terminal
// its SIGHUP. A person is slower.
constexpr milliseconds kSameEvent{100};
// What is left over after a job that went well is asked to go before it is killed.
constexpr milliseconds kLeftoverPatience{500};
// A process that survives SIGKILL this long hangs in the kernel.
constexpr milliseconds kKillPatience{5000};

}  // namespace

// --- the end --------------------------------------------------------------------------------------------------------

void RunningJob::advance() {
  if (speak_at_ && Clock::now() >= *speak_at_ && phase_ == Phase::running) speak_of_being_stuck();
  if (phase_ != Phase::running) speak_at_.reset();
  answer_inquiries();
  if (phase_ == Phase::judging && is_verdict_ready()) {
    stop_because_of_failure();
  } else if (step_deadline_ && Clock::now() >= *step_deadline_) {
    take_next_stop_step();
  }
}

bool RunningJob::is_verdict_ready() const {
  std::set<int> lost;
  for (const auto& rank : ranks_) {
    if (is_certain_cause(rank->outcome())) return true;
    lost.insert(rank->outcome().lost_ranks.begin(), rank->outcome().lost_ranks.end());
  }
  const auto waited = Clock::now() - judging_since_;
  if (waited < kJudging) return alive_ == 0;
  for (const auto& rank : ranks_) {
    if (!rank->is_alive()) continue;
    if (rank->is_exiting() && waited < kAwaitExiting) return false;
    if (lost.count(rank->number()) != 0 && waited < kAwaitLostRank && !rank->is_stopped()) return false;
  }
  return true;
}

std::vector<RankOutcome> RunningJob::outcomes() const {
  std::vector<RankOutcome> result;
  for (const auto& rank : ranks_) {
    result.push_back(rank->outcome());
    if (rank->is_alive() && rank->is_stopped()) result.back().state = RankState::stopped;
  }
  return result;
}

/// Called before the first signal to the ranks: what fails later is not the cause, and a failure that came before
/// Ctrl-C remains it.
void RunningJob::settle_cause() {
  const std::vector<RankOutcome> all = outcomes();
  if (const auto index = choose_root_cause(all)) cause_ = all[*index];
}

void RunningJob::stop_because_of_failure() {
  begin_stop({{SIGTERM, options_.shutdown_timeout}, {SIGKILL, kKillPatience}});
}

void RunningJob::begin_stop(std::vector<StopStep> steps) {
  if (phase_ != Phase::stopping) settle_cause();
  phase_ = Phase::stopping;
  steps_.assign(steps.rbegin(), steps.rend());
  take_next_stop_step();
}

void RunningJob::take_next_stop_step() {
  if (steps_.empty()) {
    abandoned_ = true;
    return;
  }
  const StopStep step = steps_.back();
  steps_.pop_back();
  step_deadline_ = Clock::now() + step.patience;
  // An end that came before the signal was nobody's wish.
  for (const auto& rank : ranks_) {
    collect(*rank);
    if (rank->is_alive()) rank->mark_told_to_end();
  }
  signal_ranks(step.signal_number);
  // A stopped process acts on nothing but SIGKILL before it is continued.
  if (step.signal_number != SIGKILL) signal_ranks(SIGCONT);
}

void RunningJob::signal_ranks(int number) {
  for (const auto& rank : ranks_) {
    if (!hosts_) {
      rank->signal_group(number);
    } else if (rank->is_alive()) {
      hosts_->signal(rank->number(), number);
    }
  }
}

void RunningJob::interrupt(int number) {
  if (phase_ == Phase::stopping) {
    // The second time, or impatience with a job that is ending anyway.
    const bool same_event = number == interrupted_by_ && Clock::now() - interrupted_at_ < kSameEvent;
    if (!same_event) begin_stop({{SIGKILL, kKillPatience}});
    return;
  }
  interrupted_by_ = number;
  interrupted_at_ = Clock::now();
  std::vector<StopStep> steps = {{number, options_.shutdown_timeout}};
  if (number != SIGTERM) steps.push_back({SIGTERM, options_.shutdown_timeout});
  steps.push_back({SIGKILL, kKillPatience});
  note(fmt::format("{}: stopping the ranks; once more kills them", signal_name(number)));
  begin_stop(std::move(steps));
  // Whoever ends a job may signal all of its processes, and ranks may be faster than we are.
  if (cause_ && cause_->state == RankState::killed && cause_->code == number) cause_.reset();
}

void RunningJob::end_leftovers() {
  const bool all_well = phase_ == Phase::running && !cause_;
  if (hosts_) finish_hosts(all_well);
  const auto stubborn = end_processes([this] { return living_descendants(::getpid(), guardian_.pid()); },
                                      all_well ? kLeftoverPatience : milliseconds(0));
  for (const pid_t pid : stubborn) {
    complain(fmt::format("process {} cannot be ended, it hangs in the kernel", pid));
  }
  collect_dead_children([this](pid_t pid) { return pid == guardian_.pid(); });
}

void RunningJob::finish_output() {
  int copy_error = 0;
  for (const auto& rank : ranks_) {
    rank->finish_output();
    copy_error = std::max(copy_error, rank->copy_error());
  }
  if (copy_error != 0) {
    complain(fmt::format("the copies in {} are not complete: {}", options_.output_directory, ::strerror(copy_error)));
  }
}

void RunningJob::report() {
  if (cause_) {
    const Rank& rank = *ranks_[static_cast<std::size_t>(cause_->rank)];
    const FailureReport failure{.cause = *cause_,
                                .all = outcomes(),
                                .last_words = rank.tail().lines(),
                                .memory = hosts_ ? memory_elsewhere_[rank.number()] : memory_.evidence(),
                                .program = program_.path,
                                .lost_host = lost_host_};
    if (events_) events_->failed(failure);
    if (call_) call_->name_cause(cause_->rank, what_happened(failure) + "; " + next_step(failure));
    for (const std::string& line : describe(failure)) screens_.error().line({}, line);
  } else if (interrupted_by_ != 0) {
    note(fmt::format("stopped by {}; all ranks have ended", signal_name(interrupted_by_)));
  } else if (output_closed_) {
    note("stopped: nobody reads the output any more");
  } else if (screens_.output().error() != 0) {
    complain(fmt::format("the output is not complete: {}", ::strerror(screens_.output().error())));
  }
}

/// Whoever has stopped reading can be left with a signal.
void RunningJob::flush() {
  while (!screens_.flush(signals_.fd())) {
    const auto number = signals_.next();
    if (number && *number != SIGCHLD && *number != SIGCONT) return;
  }
}

bool RunningJob::is_to_be_restarted() const {
  return restart_ < options_.max_restarts && cause_ && cause_->state != RankState::not_started &&
         interrupted_by_ == 0 && !output_closed_ && !abandoned_;
}

int RunningJob::exit_code() {
  if (cause_ && cause_->state == RankState::lost) return 69;
  // With this a rank says that it has met another version.
  if (cause_ && cause_->state == RankState::exited && cause_->code == 76) return 76;
  if (cause_) return cause_->state == RankState::not_started ? 2 : 1;
  if (interrupted_by_ != 0) return 128 + interrupted_by_;
  if (output_closed_) return 128 + SIGPIPE;
  return screens_.output().error() != 0 ? 1 : 0;
}

}  // namespace lockstep::launcher
