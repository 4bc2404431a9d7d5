#include "agent.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>

#include "agent_protocol.hpp"
#include "child.hpp"
#include "environment.hpp"
#include "errors.hpp"
#include "function_call.hpp"
#include "guardian.hpp"
#include "job.hpp"
#include "lockstep/version.hpp"
#include "preload.hpp"
#include "processes.hpp"
#include "program.hpp"
#include "secret.hpp"
#include "signals.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostUnsent = std::size_t{1} << 20;  // then the ranks have to wait, as with any full pipe
constexpr int kMostReadsAfterEnd = 16;
constexpr std::size_t kPieceOfResult = std::size_t{256} << 10;
constexpr milliseconds kPatienceWithLeftovers{500};

/// ssh tells both ends of its connection: "client-address client-port server-address server-port".
Greeting greeting_of_this_host() {
  Greeting greeting{.version = version()};
  if (const char* connection = std::getenv("SSH_CONNECTION")) {
    std::string port;
    std::istringstream(connection) >> greeting.launcher_address >> port >> greeting.host_address;
  }
  return greeting;
}

/// The end of the leash, or what came along it is no message: all that was started is ended.
class LeashGone {};

class Agent {
 public:
  int serve();

 private:
  struct Local {
    Child child;
    bool alive = true;
    RankEnd end = {};
    UniqueFd result = UniqueFd();  // what the function has returned; none: a program
    off_t sent = 0;                // of it
    bool is_end_told = false;
  };

  void wait_for_events();
  void read_leash();
  void on_frame(const Frame& frame);
  void prepare(const std::string& payload);
  void start(const Start& start);
  void signal_rank(const Frame& frame) const;
  void collect();
  void end_rank(std::uint32_t number, int status);
  bool tell_end(std::uint32_t number);
  bool tell_ends();
  bool pass_on(UniqueFd& pipe, std::uint32_t number, FrameKind kind);
  void tell_where(std::uint32_t question);
  int wait_time() const;
  void finish(bool all_well);
  void send(const Frame& frame);
  void write_some();
  void end_everything(milliseconds patience) const;

  SignalSource signals_;
  InheritedState inherited_{};
  OutOfMemoryWatch memory_;
  FrameReader reader_;
  std::string unsent_;
  Assignment assignment_;
  Program program_;
  std::vector<std::vector<int>> cpus_;
  std::optional<Guardian> guardian_;
  std::vector<Local> ranks_;
  bool finished_ = false;
  bool silence_announced_ = false;
  Clock::time_point heard_ = Clock::now();
};

int Agent::serve() {
  checked(::prctl(PR_SET_CHILD_SUBREAPER, 1), "prctl");
  checked(::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK), "fcntl");
  checked(::fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK), "fcntl");
  unsent_ = greeting_line(greeting_of_this_host());
  try {
    while (!finished_ || !unsent_.empty()) {
      bool all_told = false;
      do {
        all_told = finished_ || tell_ends();
        write_some();
      } while (!all_told && unsent_.empty());
      wait_for_events();
    }
    return EXIT_SUCCESS;
  } catch (const LeashGone&) {
    end_everything(milliseconds(0));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    end_everything(milliseconds(0));
  }
  return EXIT_FAILURE;
}

void Agent::wait_for_events() {
  const bool read_ranks = unsent_.size() < kMostUnsent;
  std::vector<pollfd> entries = {
      {STDIN_FILENO, POLLIN, 0}, {signals_.fd(), POLLIN, 0}, {unsent_.empty() ? -1 : STDOUT_FILENO, POLLOUT, 0}};
  for (const Local& rank : ranks_) {
    entries.push_back({read_ranks ? rank.child.standard_output.get() : -1, POLLIN, 0});
    entries.push_back({read_ranks ? rank.child.standard_error.get() : -1, POLLIN, 0});
  }
  if (finished_ && unsent_.empty()) return;
  const int ready = ::poll(entries.data(), entries.size(), wait_time());
  if (ready < 0 && errno != EINTR) throw_errno("poll");
  if (ready == 0 && wait_time() == 0) throw LeashGone();
  const std::size_t watched = ranks_.size();
  if (entries[0].revents != 0) read_leash();
  while (const auto number = signals_.next()) {
    if (*number == SIGTERM || *number == SIGINT || *number == SIGHUP) throw LeashGone();
  }
  for (std::size_t i = 0; i < watched; ++i) {
    const auto number = static_cast<std::uint32_t>(i);
    if (entries[3 + 2 * i].revents != 0) pass_on(ranks_[i].child.standard_output, number, FrameKind::output);
    if (entries[4 + 2 * i].revents != 0) pass_on(ranks_[i].child.standard_error, number, FrameKind::error);
  }
  if (!finished_) collect();
}

/// Until the launcher has been silent for too long, in milliseconds.
int Agent::wait_time() const {
  if (silence_announced_) return -1;
  const auto left = std::chrono::ceil<milliseconds>(heard_ + kLongestSilence - Clock::now());
  return static_cast<int>(std::max(left, milliseconds(0)).count());
}

void Agent::read_leash() {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) throw LeashGone();
  if (count < 0) return;
  heard_ = Clock::now();
  silence_announced_ = false;
  reader_.feed({buffer.data(), static_cast<std::size_t>(count)});
  while (const auto frame = reader_.next()) on_frame(*frame);
}

void Agent::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::prepare:
      prepare(frame.payload);
      break;
    case FrameKind::start:
      start(decode_start(frame.payload));
      break;
    case FrameKind::signal:
    case FrameKind::signal_one:
      signal_rank(frame);
      break;
    case FrameKind::alive:
      silence_announced_ = frame.number == 1;
      break;
    case FrameKind::where:
      tell_where(frame.number);
      break;
    case FrameKind::finish:
      finish(frame.number == 1);
      break;
    default:
      throw LeashGone();
  }
}

void Agent::prepare(const std::string& payload) {
  try {
    assignment_ = decode_assignment(payload);
    if (::chdir(assignment_.folder.c_str()) != 0) {
      throw UnavailableError(fmt::format("cannot go to the folder {}, in which the job was started: {}",
                                         assignment_.folder, ::strerror(errno)));
    }
    const char* path = find_variable(assignment_.environment, "PATH");
    program_ = resolve_program(assignment_.command, assignment_.module, path != nullptr ? path : "/usr/bin:/bin");
    refuse_too_little_memory(assignment_.ranks);
    inherited_ = take_over_limits(assignment_.ranks);
    inherited_.signal_mask = signals_.previous_mask();
    cpus_ = bind_ranks(assignment_.ranks, assignment_.binding);
    send({FrameKind::ready, 0, static_cast<std::uint32_t>(find_free_port())});
  } catch (const UsageError& error) {
    send({FrameKind::refused, 0, 2, error.what()});
  } catch (const std::exception& error) {
    send({FrameKind::refused, 0, 69, error.what()});
  }
}

void Agent::start(const Start& start) {
  guardian_.emplace(assignment_.ranks, assignment_.job_id);
  const UniqueFd secret = seal_secret(start.secret);
  const UniqueFd null(checked(::open("/dev/null", O_RDONLY | O_CLOEXEC), "opening /dev/null"));
  const JobEnvironment job{.job_id = assignment_.job_id,
                           .secret_fd = secret.get(),
                           .master_address = start.master_address,
                           .master_port = start.master_port,
                           .threads_per_rank = threads_per_rank(assignment_.ranks),
                           .restart = assignment_.restart,
                           .max_restarts = assignment_.max_restarts,
                           .preload = find_preload(program_.path),
                           .columns = assignment_.columns};
  const std::vector<std::string> inherited = with_settings(current_environment(), assignment_.environment);
  const UniqueFd call = start.call.empty() ? UniqueFd() : make_memory_file("lockstep-call", start.call);
  for (int i = 0; i < assignment_.ranks; ++i) {
    const Placement place{.rank = assignment_.first_rank + i,
                          .size = assignment_.size,
                          .local_rank = i,
                          .local_size = assignment_.ranks,
                          .cross_rank = assignment_.host,
                          .cross_size = assignment_.hosts};
    std::vector<std::string> environment = rank_environment(inherited, job, place);
    std::vector<int> descriptors = {secret.get()};
    UniqueFd result;
    if (call) {
      result = make_memory_file("lockstep-result");
      descriptors.insert(descriptors.end(), {call.get(), result.get()});
      environment = with_settings(std::move(environment), call_settings(call.get(), result.get()));
    }
    static const std::vector<int> kNotBound;
    ranks_.push_back({start_child({.program = program_,
                                   .environment = environment,
                                   .standard_input = null.get(),
                                   .descriptors = descriptors,
                                   .cpus = cpus_.empty() ? kNotBound : cpus_[static_cast<std::size_t>(i)],
                                   .group = guardian_->group_of(i),
                                   .inherited = inherited_})});
    ranks_.back().result = std::move(result);
    send({FrameKind::started, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(ranks_.back().child.pid)});
  }
}

void Agent::signal_rank(const Frame& frame) const {
  if (frame.rank >= ranks_.size() || !ranks_[frame.rank].alive) return;
  const pid_t pid = ranks_[frame.rank].child.pid;
  ::kill(frame.kind == FrameKind::signal ? -pid : pid, static_cast<int>(frame.number));
}

/// Ranks that have ended, were stopped or go on, and what they have left behind.
void Agent::collect() {
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    int status = 0;
    while (ranks_[i].alive && ::waitpid(ranks_[i].child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
      if (WIFSTOPPED(status)) {
        send({FrameKind::stopped, i});
      } else if (WIFCONTINUED(status)) {
        send({FrameKind::continued, i});
      } else {
        end_rank(i, status);
      }
    }
  }
  collect_dead_children([this](pid_t pid) {
    return (guardian_ && pid == guardian_->pid()) ||
           std::any_of(ranks_.begin(), ranks_.end(), [pid](const Local& rank) { return rank.child.pid == pid; });
  });
}

void Agent::end_rank(std::uint32_t number, int status) {
  Local& rank = ranks_[number];
  rank.alive = false;
  if (const auto reason = read_start_error(rank.child)) {
    rank.end = {RankState::not_started, *reason};
  } else if (WIFSIGNALED(status)) {
    rank.end = {RankState::killed, WTERMSIG(status), memory_.evidence()};
  } else {
    rank.end = {RankState::exited, WEXITSTATUS(status)};
  }
  for (int i = 0; i < kMostReadsAfterEnd && pass_on(rank.child.standard_error, number, FrameKind::error); ++i) {
  }
  for (int i = 0; i < kMostReadsAfterEnd && pass_on(rank.child.standard_output, number, FrameKind::output); ++i) {
  }
}

/// With what it has returned before that, which is never held twice. False when there is too much for now.
bool Agent::tell_end(std::uint32_t number) {
  Local& rank = ranks_[number];
  while (rank.result) {
    if (unsent_.size() >= kMostUnsent) return false;
    std::string piece(kPieceOfResult, '\0');
    const ssize_t count = ::pread(rank.result.get(), piece.data(), piece.size(), rank.sent);
    if (count <= 0) {
      rank.result.reset();
    } else {
      piece.resize(static_cast<std::size_t>(count));
      rank.sent += count;
      send({FrameKind::result, number, 0, piece});
    }
  }
  send({FrameKind::ended, number, 0, encode(rank.end)});
  rank.is_end_told = true;
  return true;
}

bool Agent::tell_ends() {
  bool all_told = true;
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].alive && !ranks_[i].is_end_told) all_told = tell_end(i) && all_told;
  }
  return all_told;
}

bool Agent::pass_on(UniqueFd& pipe, std::uint32_t number, FrameKind kind) {
  if (!pipe) return false;
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(pipe.get(), buffer.data(), buffer.size());
  if (count > 0) send({kind, number, 0, std::string(buffer.data(), static_cast<std::size_t>(count))});
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) pipe.reset();
  return count > 0;
}

void Agent::tell_where(std::uint32_t question) {
  std::vector<RankProcess> living;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].alive) living.push_back({assignment_.first_rank + static_cast<int>(i), ranks_[i].child.pid});
  }
  send({FrameKind::found, 0, question, encode(find_whereabouts(living))});
}

/// The streams are read to their end, now that nobody writes to them any more.
void Agent::finish(bool all_well) {
  end_everything(all_well ? kPatienceWithLeftovers : milliseconds(0));
  collect();
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    while (pass_on(ranks_[i].child.standard_output, i, FrameKind::output)) {
    }
    while (pass_on(ranks_[i].child.standard_error, i, FrameKind::error)) {
    }
  }
  tell_ends();
  guardian_.reset();
  send({FrameKind::done});
  finished_ = true;
}

void Agent::end_everything(milliseconds patience) const {
  const pid_t guardian = guardian_ ? guardian_->pid() : -1;
  end_processes([guardian] { return living_descendants(::getpid(), guardian); }, patience);
}

void Agent::send(const Frame& frame) { unsent_ += encode(frame); }

void Agent::write_some() {
  while (!unsent_.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, unsent_.data(), unsent_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) throw LeashGone();
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

}  // namespace

int run_agent(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) throw UsageError("lockstep agent is started by lockstep run on other hosts");
  return Agent().serve();
}

}  // namespace lockstep::launcher
