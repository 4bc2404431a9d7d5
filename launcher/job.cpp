#include "job.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "child.hpp"
#include "environment.hpp"
#include "guardian.hpp"
#include "out_of_memory.hpp"
#include "processes.hpp"
#include "rank.hpp"
#include "report.hpp"
#include "root_cause.hpp"
#include "screens.hpp"
#include "secret.hpp"
#include "signals.hpp"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After a first failure we look for its cause this long before we touch the other ranks: a killed rank's peers can be
// gone before the kernel has finished with the killed one.
constexpr milliseconds kJudging{150};
// Longer if a rank reports the loss of one that is still there, and may be about to say why (Python takes its time to
// leave), but short enough for an exception to be on the screen within 3 s.
constexpr milliseconds kAwaitLostRank{1500};
// Longer still for a process that is already on its way out: freeing its memory takes the kernel 33 ms per GB.
constexpr milliseconds kAwaitExiting{5000};
constexpr milliseconds kRecheck{20};
// A signal that comes again so soon has come from the same event: `timeout` sends its SIGTERM twice, a closed terminal
// its SIGHUP. A person is slower.
constexpr milliseconds kSameEvent{100};
// What is left over after a job that went well is asked to go before it is killed.
constexpr milliseconds kLeftoverPatience{500};
// A process that survives SIGKILL this long hangs in the kernel.
constexpr milliseconds kKillPatience{5000};

/// What an event of the loop is about.
enum class Source : std::uint32_t { signals, screen, process, output, error };

std::uint64_t event_key(Source source, std::size_t index = 0) {
  return static_cast<std::uint64_t>(source) << 32 | index;
}

/// One step on the way to the end: the signal that is sent, and how long it may take effect.
struct StopStep {
  int signal_number;
  milliseconds patience;
};

class Job {
 public:
  Job(const RunOptions& options, const Program& program);
  ~Job();

  int run();

 private:
  enum class Phase {
    running,
    judging,   // a rank has failed; we are looking for the cause
    stopping,  // the ranks have been told to end
  };

  // Start.
  void start_ranks();
  JobEnvironment make_environment() const;
  std::string copies_folder(int rank) const;
  void watch(int fd, Source source, std::size_t index = 0) const;

  // Events.
  void wait_for_events();
  int wait_time() const;
  void on_signal(int number);
  void collect(Rank& rank);
  void pause();
  void write_screens();
  void note(const std::string& text);

  // The end.
  void advance();
  bool is_verdict_ready() const;
  std::vector<RankOutcome> outcomes() const;
  void settle_cause();
  void begin_stop(std::vector<StopStep> steps);
  void take_next_stop_step();
  void signal_ranks(int number) const;
  void interrupt(int number);
  void end_leftovers();
  void finish_output();
  void report();
  void flush();
  int exit_code();

  const RunOptions& options_;
  const Program& program_;
  SignalSource signals_;
  const InheritedState inherited_;
  const UniqueFd secret_;
  const std::string job_id_;
  const OutOfMemoryWatch memory_;
  Guardian guardian_;
  const UniqueFd epoll_;
  Screens screens_;
  bool reading_ = true;  // false while the screens are full

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::size_t alive_ = 0;
  int ended_ = 0;

  Phase phase_ = Phase::running;
  Clock::time_point judging_since_{};
  std::vector<StopStep> steps_;  // the next one last
  std::optional<Clock::time_point> step_deadline_;
  bool abandoned_ = false;
  std::optional<RankOutcome> cause_;
  int interrupted_by_ = 0;
  Clock::time_point interrupted_at_{};
  bool output_closed_ = false;
};

InheritedState take_over_limits(const sigset_t& signal_mask, int ranks) {
  InheritedState state;
  state.signal_mask = signal_mask;
  // A reader that goes away must not kill us; the write fails instead.
  state.default_sigpipe = ::signal(SIGPIPE, SIG_IGN) == SIG_DFL;
  checked(::getrlimit(RLIMIT_NOFILE, &state.open_files), "getrlimit");
  rlimit wanted = state.open_files;
  const auto needed = static_cast<rlim_t>(ranks) * 6 + 64;
  if (wanted.rlim_cur < needed) {
    wanted.rlim_cur = std::min(needed, wanted.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &wanted);
  }
  return state;
}

Job::Job(const RunOptions& options, const Program& program)
    : options_(options),
      program_(program),
      inherited_(take_over_limits(signals_.previous_mask(), options.processes)),
      secret_(make_secret()),
      job_id_(make_job_id()),
      guardian_(options.processes, job_id_),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  // What a rank leaves behind when it ends becomes our child, and is ended with the job.
  checked(::prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl");
  watch(signals_.fd(), Source::signals);
}

Job::~Job() {
  // After a job that ran to its end nothing is left; after an exception everything is.
  end_processes([this] { return living_descendants(::getpid(), guardian_.pid()); }, milliseconds(0));
}

int Job::run() {
  start_ranks();
  while (alive_ > 0 && !abandoned_) {
    wait_for_events();
    advance();
  }
  if (phase_ != Phase::stopping) settle_cause();
  end_leftovers();
  finish_output();
  guardian_.dismiss();
  report();
  flush();
  return exit_code();
}

// --- start ----------------------------------------------------------------------------------------------------------

void Job::start_ranks() {
  const std::vector<std::string> inherited = current_environment();
  const JobEnvironment job = make_environment();
  if (options_.processes > 1 && find_variable(inherited, "OMP_NUM_THREADS") == nullptr) {
    note(fmt::format("OMP_NUM_THREADS={} for each of {} ranks on {} cores; set it to choose yourself",
                     job.threads_per_rank, options_.processes, usable_cores()));
  }
  // A rank is in the background of a terminal and would be stopped for reading from it.
  const UniqueFd null(checked(::open("/dev/null", O_RDONLY | O_CLOEXEC), "opening /dev/null"));
  const int first_input = ::isatty(STDIN_FILENO) == 1 ? null.get() : STDIN_FILENO;

  for (int number = 0; number < options_.processes; ++number) {
    ranks_.push_back(std::make_unique<Rank>(number, screens_));
    if (!options_.output_directory.empty()) ranks_.back()->keep_copies(copies_folder(number));
  }
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = *ranks_[index];
    const int number = rank.number();
    const auto environment = rank_environment(inherited, job, place_on_one_machine(number, options_.processes));
    rank.start({.program = program_,
                .environment = environment,
                .standard_input = number == 0 ? first_input : null.get(),
                .secret_fd = secret_.get(),
                .group = guardian_.group_of(number),
                .inherited = inherited_});
    ++alive_;
    watch(rank.process_fd(), Source::process, index);
    watch(rank.output_fd(), Source::output, index);
    watch(rank.error_fd(), Source::error, index);
  }
}

JobEnvironment Job::make_environment() const {
  // The rank stands before each line of a terminal, and the last column stays free.
  const bool terminal = is_capable_terminal(STDERR_FILENO, ::getenv("TERM"));
  return {.job_id = job_id_,
          .secret_fd = secret_.get(),
          .master_port = find_free_port(),
          .threads_per_rank = threads_per_rank(options_.processes),
          .columns = terminal ? std::max(20, terminal_width(STDERR_FILENO) - 5) : 0};
}

/// Numbers of equal width, so that the folders sort in the order of the ranks.
std::string Job::copies_folder(int rank) const {
  const auto width = std::to_string(options_.processes - 1).size();
  return fmt::format("{}/rank.{:0{}}", options_.output_directory, rank, width);
}

void Job::watch(int fd, Source source, std::size_t index) const {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = event_key(source, index)}};
  checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

// --- events ---------------------------------------------------------------------------------------------------------

int Job::wait_time() const {
  std::optional<Clock::time_point> until = step_deadline_;
  if (phase_ == Phase::judging) until = std::max(judging_since_ + kJudging, Clock::now() + kRecheck);
  if (!until) return -1;
  return static_cast<int>(std::max<long>(std::chrono::ceil<milliseconds>(*until - Clock::now()).count(), 0));
}

void Job::wait_for_events() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_time());
  if (count < 0 && errno != EINTR) throw_errno("epoll_wait");
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[static_cast<std::size_t>(i)].data.u64;
    const auto index = static_cast<std::size_t>(key & 0xffffffff);
    switch (static_cast<Source>(key >> 32)) {
      case Source::signals:
        while (const auto number = signals_.next()) on_signal(*number);
        break;
      case Source::screen:
        break;  // written below
      case Source::process:
        collect(*ranks_[index]);
        break;
      case Source::output:
        ranks_[index]->read_output();
        break;
      case Source::error:
        ranks_[index]->read_error();
        break;
    }
  }
  write_screens();
}

void Job::on_signal(int number) {
  switch (number) {
    case SIGCHLD:
      // Ranks are collected by their own descriptors, in the order in which they ended.
      collect_dead_children([this](pid_t pid) {
        return pid == guardian_.pid() || std::any_of(ranks_.begin(), ranks_.end(), [pid](const auto& rank) {
                 return rank->is_alive() && rank->pid() == pid;
               });
      });
      break;
    case SIGTSTP:
      pause();
      break;
    case SIGCONT:
      signal_ranks(SIGCONT);
      break;
    case SIGUSR1:
    case SIGUSR2:
      // Batch systems announce the end of a job's time with these. They are for the program, not for its helpers.
      for (const auto& rank : ranks_) {
        if (rank->is_alive()) ::kill(rank->pid(), number);
      }
      break;
    default:
      interrupt(number);
  }
}

void Job::collect(Rank& rank) {
  if (!rank.collect(ended_)) return;
  ++ended_;
  --alive_;
  if (phase_ == Phase::running && has_failed(rank.outcome())) {
    phase_ = Phase::judging;
    judging_since_ = Clock::now();
  }
}

/// Ctrl-Z: the ranks first, then ourselves; after `fg` all of them go on.
void Job::pause() {
  const auto since = Clock::now();
  signal_ranks(SIGSTOP);
  write_screens();
  ::raise(SIGSTOP);
  signal_ranks(SIGCONT);
  const auto paused = Clock::now() - since;
  judging_since_ += paused;
  if (step_deadline_) *step_deadline_ += paused;
}

void Job::write_screens() {
  screens_.write_some(epoll_.get(), event_key(Source::screen));

  if (reading_ == screens_.are_full()) {
    reading_ = !reading_;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      for (const auto& [fd, source] :
           {std::pair(ranks_[i]->output_fd(), Source::output), std::pair(ranks_[i]->error_fd(), Source::error)}) {
        if (fd < 0) continue;
        if (reading_) {
          watch(fd, source, i);
        } else {
          ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
        }
      }
    }
  }

  // Like any program in a pipeline: nobody reads, so there is nothing to go on for.
  if (screens_.output().error() == EPIPE && !output_closed_) {
    output_closed_ = true;
    if (phase_ != Phase::stopping) begin_stop({{SIGTERM, options_.shutdown_timeout}, {SIGKILL, kKillPatience}});
  }
}

void Job::note(const std::string& text) {
  if (!options_.quiet) screens_.error().line("lockstep: ", text);
}

// --- the end --------------------------------------------------------------------------------------------------------

void Job::advance() {
  if (phase_ == Phase::judging && is_verdict_ready()) {
    begin_stop({{SIGTERM, options_.shutdown_timeout}, {SIGKILL, kKillPatience}});
  } else if (step_deadline_ && Clock::now() >= *step_deadline_) {
    take_next_stop_step();
  }
}

bool Job::is_verdict_ready() const {
  std::set<int> lost;
  for (const auto& rank : ranks_) {
    if (is_certain_cause(rank->outcome())) return true;
    lost.insert(rank->outcome().lost_ranks.begin(), rank->outcome().lost_ranks.end());
  }
  const auto waited = Clock::now() - judging_since_;
  if (waited < kJudging) return alive_ == 0;
  for (const auto& rank : ranks_) {
    if (!rank->is_alive()) continue;
    const auto info = read_process(rank->pid());
    if (!info) continue;
    if (info->exiting && waited < kAwaitExiting) return false;
    if (info->state != 'T' && lost.count(rank->number()) != 0 && waited < kAwaitLostRank) return false;
  }
  return true;
}

std::vector<RankOutcome> Job::outcomes() const {
  std::vector<RankOutcome> result;
  for (const auto& rank : ranks_) {
    result.push_back(rank->outcome());
    if (!rank->is_alive()) continue;
    const auto info = read_process(rank->pid());
    if (info && info->state == 'T') result.back().state = RankState::stopped;
  }
  return result;
}

/// Called before the first signal to the ranks: what fails later is not the cause, and a failure that came before
/// Ctrl-C remains it.
void Job::settle_cause() {
  const std::vector<RankOutcome> all = outcomes();
  if (const auto index = choose_root_cause(all)) cause_ = all[*index];
}

void Job::begin_stop(std::vector<StopStep> steps) {
  if (phase_ != Phase::stopping) settle_cause();
  phase_ = Phase::stopping;
  steps_.assign(steps.rbegin(), steps.rend());
  take_next_stop_step();
}

void Job::take_next_stop_step() {
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

void Job::signal_ranks(int number) const {
  for (const auto& rank : ranks_) rank->signal_group(number);
}

void Job::interrupt(int number) {
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

void Job::end_leftovers() {
  const bool all_well = phase_ == Phase::running && !cause_;
  const auto stubborn = end_processes([this] { return living_descendants(::getpid(), guardian_.pid()); },
                                      all_well ? kLeftoverPatience : milliseconds(0));
  for (const pid_t pid : stubborn) {
    screens_.error().line("lockstep: ", fmt::format("process {} cannot be ended, it hangs in the kernel", pid));
  }
  collect_dead_children([this](pid_t pid) { return pid == guardian_.pid(); });
}

void Job::finish_output() {
  int copy_error = 0;
  for (const auto& rank : ranks_) {
    rank->finish_output();
    copy_error = std::max(copy_error, rank->copy_error());
  }
  if (copy_error != 0) {
    screens_.error().line("lockstep: ", fmt::format("the copies in {} are not complete: {}", options_.output_directory,
                                                    ::strerror(copy_error)));
  }
}

void Job::report() {
  if (cause_) {
    const Rank& rank = *ranks_[static_cast<std::size_t>(cause_->rank)];
    const FailureReport failure{.cause = *cause_,
                                .all = outcomes(),
                                .last_words = rank.tail().lines(),
                                .memory = memory_.evidence(),
                                .program = program_.path};
    for (const std::string& line : describe(failure)) screens_.error().line({}, line);
  } else if (interrupted_by_ != 0) {
    note(fmt::format("stopped by {}; all ranks have ended", signal_name(interrupted_by_)));
  } else if (output_closed_) {
    note("stopped: nobody reads the output any more");
  } else if (screens_.output().error() != 0) {
    screens_.error().line("lockstep: ",
                          fmt::format("the output is not complete: {}", ::strerror(screens_.output().error())));
  }
}

/// Whoever has stopped reading can be left with a signal.
void Job::flush() {
  while (!screens_.flush(signals_.fd())) {
    const auto number = signals_.next();
    if (number && *number != SIGCHLD && *number != SIGCONT) return;
  }
}

int Job::exit_code() {
  if (cause_) return cause_->state == RankState::not_started ? 2 : 1;
  if (interrupted_by_ != 0) return 128 + interrupted_by_;
  if (output_closed_) return 128 + SIGPIPE;
  return screens_.output().error() != 0 ? 1 : 0;
}

}  // namespace

int run_job(const RunOptions& options, const Program& program) { return Job(options, program).run(); }

}  // namespace lockstep::launcher
