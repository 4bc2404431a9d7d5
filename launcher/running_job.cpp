#include "running_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "preload.hpp"
#include "processes.hpp"
#include "secret.hpp"
#include "topology.hpp"

namespace lockstep::launcher {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRecheck{20};

std::string bound_text(const std::vector<std::vector<int>>& cpus) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t rank = 0; rank < std::min(cpus.size(), kMost); ++rank) {
    text += fmt::format("{}rank {} on CPUs {}", rank == 0 ? "" : ", ", rank, list_text(cpus[rank]));
  }
  return cpus.size() > kMost ? text + " and so on" : text;
}

}  // namespace

RunningJob::RunningJob(const RunOptions& options, const Program& program, const InheritedState& inherited, int restart)
    : options_(options),
      program_(program),
      inherited_(inherited),
      restart_(restart),
      secret_(make_secret()),
      job_id_(make_job_id()),
      cpus_(options.hosts.empty() ? bind_ranks(options.processes, options.binding) : std::vector<std::vector<int>>{}),
      guardian_(options.processes, job_id_),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  // What a rank leaves behind when it ends becomes our child, and is ended with the job.
  checked(::prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl");
  if (!options.call_folder.empty()) call_.emplace(options.call_folder);
  if (options.json) events_.emplace(screens_.output());
  screens_.show_timestamps(options.timestamps);
  watch(signals_.fd(), Source::signals);
}

RunningJob::~RunningJob() {
  // After a job that ran to its end nothing is left; after an exception everything is.
  end_processes([this] { return living_descendants(::getpid(), guardian_.pid()); }, milliseconds(0));
}

int RunningJob::run() {
  try {
    options_.hosts.empty() ? start_ranks() : start_on_hosts();
  } catch (const InterruptedStart&) {
    return 128 + interrupted_by_;
  }
  while (alive_ > 0 && !abandoned_) {
    wait_for_events();
    advance();
  }
  if (phase_ != Phase::stopping) settle_cause();
  end_leftovers();
  finish_output();
  guardian_.dismiss();
  report();
  const int code = exit_code();
  if (is_to_be_restarted()) note(fmt::format("restart {} of {}", restart_ + 1, options_.max_restarts));
  if (events_) events_->ended(code, is_to_be_restarted());
  flush();
  return code;
}

// --- start ----------------------------------------------------------------------------------------------------------

void RunningJob::start_ranks() {
  const std::vector<std::string> inherited = with_settings(current_environment(), options_.environment);
  const JobEnvironment job = make_environment();
  if (restart_ == 0) note_settings(inherited, job.threads_per_rank);
  // A rank is in the background of a terminal and would be stopped for reading from it.
  const UniqueFd null(checked(::open("/dev/null", O_RDONLY | O_CLOEXEC), "opening /dev/null"));
  const int first_input = ::isatty(STDIN_FILENO) == 1 ? null.get() : STDIN_FILENO;

  for (int number = 0; number < options_.processes; ++number) {
    ranks_.push_back(std::make_unique<Rank>(number, screens_, events_ ? &*events_ : nullptr));
    if (!options_.output_directory.empty()) ranks_.back()->keep_copies(copies_folder(number));
  }
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = *ranks_[index];
    const int number = rank.number();
    static const std::vector<int> kNotBound;
    std::vector<std::string> environment =
        rank_environment(inherited, job, place_on_one_machine(number, options_.processes));
    std::vector<int> descriptors = {secret_.get()};
    UniqueFd result;
    if (call_) {
      result = call_->make_result(number);
      descriptors.insert(descriptors.end(), {call_->call_fd(), result.get()});
      environment = with_settings(std::move(environment), call_settings(call_->call_fd(), result.get()));
    }
    rank.start({.program = program_,
                .environment = environment,
                .standard_input = number == 0 ? first_input : null.get(),
                .descriptors = descriptors,
                .cpus = cpus_.empty() ? kNotBound : cpus_[index],
                .group = guardian_.group_of(number),
                .inherited = inherited_});
    ++alive_;
    watch(rank.process_fd(), Source::process, index);
    watch(rank.output_fd(), Source::output, index);
    watch(rank.error_fd(), Source::error, index);
  }
  if (events_) events_->started(job_id_, restart_, outcomes());
}

void RunningJob::note_settings(const std::vector<std::string>& inherited, int threads) {
  if (options_.processes > 1 && find_variable(inherited, "OMP_NUM_THREADS") == nullptr) {
    note(fmt::format("OMP_NUM_THREADS={} for each of {} ranks on {} cores; set it to choose yourself", threads,
                     options_.processes, usable_cores()));
  }
  if (!cpus_.empty()) note(fmt::format("{}; --bind none leaves them free", bound_text(cpus_)));
  if (cpus_.empty() && options_.binding == Binding::core) note("more ranks than cores: they are not bound");
  note_no_effect();
}

void RunningJob::note_no_effect() {
  if (!options_.no_effect.empty()) note(fmt::format("without effect here: {}", fmt::join(options_.no_effect, ", ")));
}

JobEnvironment RunningJob::make_environment() const {
  // The rank stands before each line of a terminal, and the last column stays free.
  const bool terminal = is_capable_terminal(STDERR_FILENO, ::getenv("TERM"));
  return {.job_id = job_id_,
          .secret_fd = secret_.get(),
          .master_port = options_.master_port != 0 ? options_.master_port : find_free_port(),
          .threads_per_rank = threads_per_rank(options_.processes),
          .restart = restart_,
          .max_restarts = options_.max_restarts,
          .preload = find_preload(program_.path),
          .columns = terminal ? std::max(20, terminal_width(STDERR_FILENO) - 5) : 0};
}

/// Numbers of equal width, so that the folders sort in the order of the ranks.
std::string RunningJob::copies_folder(int rank) const {
  const auto width = std::to_string(options_.processes - 1).size();
  const std::string again = restart_ == 0 ? "" : fmt::format("/restart.{}", restart_);
  return fmt::format("{}{}/rank.{:0{}}", options_.output_directory, again, rank, width);
}

void RunningJob::watch(int fd, Source source, std::size_t index) const {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = event_key(source, index)}};
  checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

// --- events ---------------------------------------------------------------------------------------------------------

int RunningJob::wait_time() const {
  std::optional<Clock::time_point> until = step_deadline_;
  if (phase_ == Phase::judging) until = std::max(judging_since_ + kJudging, Clock::now() + kRecheck);
  if (speak_at_) until = until ? std::min(*until, *speak_at_) : *speak_at_;
  if (hosts_) until = until ? std::min(*until, next_sign_of_life_) : next_sign_of_life_;
  for (const Inquiry& inquiry : inquiries_) until = std::min(until.value_or(inquiry.deadline()), inquiry.deadline());
  if (!until) return -1;
  return static_cast<int>(std::max<long>(std::chrono::ceil<milliseconds>(*until - Clock::now()).count(), 0));
}

void RunningJob::wait_for_events() {
  std::array<epoll_event, 64> events;
  if (hosts_) watch_unsent();
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
        read_error(*ranks_[index]);
        break;
      case Source::host:
        read_host(index);
        break;
      case Source::host_input:
        (*hosts_)[index].write_some();
        break;
      case Source::host_words:
        (*hosts_)[index].read_words();
        break;
      case Source::door:
        let_visitor_in();
        break;
    }
  }
  if (hosts_) give_sign_of_life();
  write_screens();
}

void RunningJob::on_signal(int number) {
  switch (number) {
    case SIGCHLD:
      // Ranks are collected by their own descriptors, in the order in which they ended.
      collect_dead_children([this](pid_t pid) {
        return pid == guardian_.pid() || is_connection(pid) ||
               std::any_of(ranks_.begin(), ranks_.end(),
                           [pid](const auto& rank) { return rank->is_alive() && rank->pid() == pid; });
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
        if (!rank->is_alive()) continue;
        if (hosts_) {
          hosts_->signal(rank->number(), number, true);
        } else {
          ::kill(rank->pid(), number);
        }
      }
      break;
    case SIGQUIT:
      show_whereabouts();
      break;
    default:
      interrupt(number);
  }
}

void RunningJob::read_error(Rank& rank) {
  const std::size_t stalls = rank.tail().stalls();
  rank.read_error();
  if (rank.tail().stalls() != stalls) hear_of_being_stuck();
}

void RunningJob::collect(Rank& rank) {
  if (rank.collect(ended_)) note_end(rank);
}

void RunningJob::note_end(const Rank& rank) {
  ++ended_;
  --alive_;
  if (events_) events_->rank_ended(rank.outcome());
  if (phase_ == Phase::running && has_failed(rank.outcome())) {
    phase_ = Phase::judging;
    judging_since_ = Clock::now();
  }
}

/// Ctrl-Z: the ranks first, then ourselves; after `fg` all of them go on.
void RunningJob::pause() {
  const auto since = Clock::now();
  signal_ranks(SIGSTOP);
  if (hosts_) hosts_->say_alive(true);
  write_screens();
  ::raise(SIGSTOP);
  signal_ranks(SIGCONT);
  const auto paused = Clock::now() - since;
  judging_since_ += paused;
  if (step_deadline_) *step_deadline_ += paused;
}

void RunningJob::write_screens() {
  screens_.write_some(epoll_.get(), event_key(Source::screen));

  if (reading_ == screens_.are_full()) {
    reading_ = !reading_;
    if (hosts_) watch_hosts(reading_);
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
    if (phase_ != Phase::stopping) stop_because_of_failure();
  }
}

void RunningJob::note(const std::string& text) {
  if (!options_.quiet) complain(text);
}

void RunningJob::complain(const std::string& text) { screens_.error().line("lockstep: ", text); }

}  // namespace lockstep::launcher
