#include <fmt/core.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "running_job.hpp"
#include "secret.hpp"

namespace lockstep::launcher {

namespace {

using std::chrono::milliseconds;

// Within 10 s the user knows that a host cannot be reached. --start-timeout gives slow ones more time.
constexpr milliseconds kReachHosts{9500};
// How long the agents have to end what the ranks have left behind, which takes them 2.5 s at most.
constexpr milliseconds kFinishHosts{5000};
constexpr milliseconds kLastBreath{500};

milliseconds time_to_reach(const std::vector<std::string>& environment) {
  const char* text = find_variable(environment, "LOCKSTEP_START_TIMEOUT");
  double seconds = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), seconds).ec != std::errc() || seconds <= 0) {
    return kReachHosts;
  }
  return milliseconds(static_cast<long>(seconds * 1000));
}

}  // namespace

Assignment RunningJob::make_assignment() const {
  const JobEnvironment job = make_environment();
  Assignment assignment;
  assignment.job_id = job_id_;
  assignment.folder = std::filesystem::current_path().string();
  assignment.command = options_.command;
  assignment.module = options_.module;
  assignment.environment = with_settings(environment_for_other_hosts(current_environment()), options_.environment);
  assignment.size = options_.processes;
  assignment.binding = options_.binding;
  assignment.restart = restart_;
  assignment.max_restarts = options_.max_restarts;
  assignment.columns = job.columns;
  return assignment;
}

void RunningJob::start_on_hosts() {
  for (int number = 0; number < options_.processes; ++number) {
    ranks_.push_back(std::make_unique<Rank>(number, screens_, events_ ? &*events_ : nullptr));
    const Placement place = place_on_hosts(options_.hosts, number);
    ranks_.back()->follow(options_.hosts[static_cast<std::size_t>(place.cross_rank)].name);
    if (!options_.output_directory.empty()) ranks_.back()->keep_copies(copies_folder(number));
    if (call_) call_->make_result(number);
  }
  if (restart_ == 0) note_no_effect();
  hosts_.emplace(options_.hosts, options_.ssh, inherited_, guardian_);
  hosts_->prepare(make_assignment(), time_to_reach(options_.environment), signals_.fd(),
                  [this] { return is_start_interrupted(); });
  alive_ = ranks_.size();
  watch_hosts(true);
  for (std::size_t i = 0; i < hosts_->size(); ++i) {
    if ((*hosts_)[i].words_fd() >= 0) watch((*hosts_)[i].words_fd(), Source::host_words, i);
  }
  hosts_->start({.secret = read_secret(secret_),
                 .master_address = options_.master_address,
                 .master_port = options_.master_port,
                 .call = call_ ? call_->read_call() : ""});
  const auto is_known = [](const auto& rank) { return rank->pid() > 0 || !rank->is_alive(); };
  while (!std::all_of(ranks_.begin(), ranks_.end(), is_known) && !abandoned_) {
    wait_for_events();
    advance();
  }
  all_started_ = true;
  door_.emplace(job_id_);
  watch(door_->fd(), Source::door);
  if (events_) events_->started(job_id_, restart_, outcomes());
  for (const auto& [index, frame] : std::exchange(early_frames_, {})) take_frame((*hosts_)[index], frame);
  write_screens();  // nothing else may happen for a long time
}

/// While nothing has been started, signals that end a job end the launcher.
bool RunningJob::is_start_interrupted() {
  while (const auto number = signals_.next()) {
    if (*number != SIGINT && *number != SIGTERM && *number != SIGHUP) continue;
    interrupted_by_ = *number;
    return true;
  }
  return false;
}

bool RunningJob::is_connection(pid_t pid) {
  for (std::size_t i = 0; hosts_ && i < hosts_->size(); ++i) {
    if ((*hosts_)[i].pid() == pid) return true;
  }
  return false;
}

/// A connection with words that it has not taken yet tells once when it has room.
void RunningJob::watch_unsent() {
  for (std::size_t i = 0; i < hosts_->size(); ++i) {
    const int fd = (*hosts_)[i].input_fd();
    if (fd < 0) continue;
    epoll_event event{.events = EPOLLOUT | EPOLLONESHOT, .data = {.u64 = event_key(Source::host_input, i)}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) continue;
    checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  }
}

void RunningJob::watch_hosts(bool reading) {
  for (std::size_t i = 0; i < hosts_->size(); ++i) {
    const int fd = (*hosts_)[i].output_fd();
    if (fd < 0) continue;
    if (reading) {
      watch(fd, Source::host, i);
    } else {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }
}

void RunningJob::read_host(std::size_t index) {
  RemoteHost& host = (*hosts_)[index];
  host.read([&](const Frame& frame) {
    // Nothing is told of a job before all of it has started.
    if (all_started_ || frame.kind == FrameKind::started) {
      take_frame(host, frame);
    } else {
      early_frames_.emplace_back(index, frame);
    }
  });
  if (!host.is_connected()) lose_host(host);
}

void RunningJob::take_frame(RemoteHost& host, const Frame& frame) {
  if (frame.rank >= static_cast<std::uint32_t>(host.ranks())) throw std::runtime_error("there is no such rank");
  Rank& rank = *ranks_[static_cast<std::size_t>(host.first_rank()) + frame.rank];
  switch (frame.kind) {
    case FrameKind::started:
      rank.set_pid(static_cast<pid_t>(frame.number));
      break;
    case FrameKind::output:
      rank.take_output(frame.payload);
      break;
    case FrameKind::error: {
      const std::size_t stalls = rank.tail().stalls();
      rank.take_error(frame.payload);
      if (rank.tail().stalls() != stalls) hear_of_being_stuck();
      break;
    }
    case FrameKind::result:
      if (call_) call_->append_result(rank.number(), frame.payload);
      break;
    case FrameKind::stopped:
    case FrameKind::continued:
      rank.set_stopped(frame.kind == FrameKind::stopped);
      break;
    case FrameKind::ended: {
      const RankEnd end = decode_rank_end(frame.payload);
      memory_elsewhere_[rank.number()] = end.memory;
      if (rank.take_end(end.state, end.code, ended_)) note_end(rank);
      break;
    }
    case FrameKind::found:
      take_found(host, frame);
      break;
    case FrameKind::done:
      ++finished_hosts_;
      break;
    default:
      throw std::runtime_error("an agent does not say this");
  }
}

/// The agent there ends its ranks; here they are lost, which no other event explains.
void RunningJob::lose_host(RemoteHost& host) {
  bool had_ranks = false;
  for (int number = host.first_rank(); number < host.first_rank() + host.ranks(); ++number) {
    Rank& rank = *ranks_[static_cast<std::size_t>(number)];
    if (!rank.take_end(RankState::lost, 0, ended_)) continue;
    had_ranks = true;
    note_end(rank);
  }
  if (had_ranks && lost_host_.empty()) lost_host_ = host.why_lost();
}

void RunningJob::give_sign_of_life() {
  if (Clock::now() < next_sign_of_life_) return;
  hosts_->say_alive(false);
  next_sign_of_life_ = Clock::now() + kSignOfLife;
}

void RunningJob::finish_hosts(bool all_well) {
  hosts_->finish(all_well);
  const auto deadline = Clock::now() + kFinishHosts;
  const auto is_finished = [&] {
    std::size_t connected = 0;
    for (std::size_t i = 0; i < hosts_->size(); ++i) connected += (*hosts_)[i].is_connected() ? 1 : 0;
    return connected == 0 || finished_hosts_ >= hosts_->size();
  };
  step_deadline_ = deadline;
  phase_ = Phase::stopping;
  while (!is_finished() && Clock::now() < deadline) wait_for_events();
  for (std::size_t i = 0; i < hosts_->size(); ++i) {
    if ((*hosts_)[i].is_connected() && finished_hosts_ < hosts_->size()) {
      complain(fmt::format("{} has not said that all has ended there", (*hosts_)[i].name()));
    }
    (*hosts_)[i].hang_up();
  }
  if (finished_hosts_ < hosts_->size()) return;
  // Agents that have said that all has ended there still have to end themselves, and so have their connections.
  const auto last_breath = std::min(deadline, Clock::now() + kLastBreath);
  for (std::size_t i = 0; i < hosts_->size(); ++i) (*hosts_)[i].await_end(last_breath);
}

}  // namespace lockstep::launcher
