#include "rank.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "processes.hpp"
#include "run_options.hpp"

namespace lockstep::launcher {

namespace {

// How much is read after a rank's end. Its pipes hold no more than this, but what it left behind may go on writing.
constexpr int kMostBuffersAfterEnd = 16;

UniqueFd create_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) throw UsageError(fmt::format("--output: cannot write {}: {}", path, ::strerror(errno)));
  return fd;
}

}  // namespace

Rank::Rank(int number, Screens& screens, EventLog* events)
    : output_(number, "stdout", screens.output(), events, nullptr),
      error_(number, "stderr", screens.error(), events, &tail_) {
  outcome_.rank = number;
}

void Rank::keep_copies(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UsageError(fmt::format("--output: cannot make the folder {}: {}", folder, error.message()));
  output_.copy_to(create_file(folder + "/stdout"));
  error_.copy_to(create_file(folder + "/stderr"));
}

void Rank::start(const ChildSettings& settings) {
  child_ = start_child(settings);
  outcome_.pid = child_.pid;
}

bool Rank::take_end(RankState state, int code, int order) {
  if (!is_alive()) return false;
  outcome_.state = state;
  outcome_.code = code;
  outcome_.order = order;
  outcome_.lost_ranks = tail_.lost_ranks();
  outcome_.noticed_in = tail_.noticed_in();
  return true;
}

bool Rank::is_stopped() const {
  if (!is_local()) return stopped_;
  const auto info = read_process(pid());
  return info && info->state == 'T';
}

bool Rank::is_exiting() const {
  const auto info = is_local() ? read_process(pid()) : std::nullopt;
  return info && info->exiting;
}

bool Rank::read_once(UniqueFd& pipe, RankOutput& output) {
  if (!pipe) return false;
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(pipe.get(), buffer.data(), buffer.size());
  if (count > 0) {
    output.feed({buffer.data(), static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  if (count == 0 || errno != EAGAIN) pipe.reset();
  return false;
}

/// What a failed rank has started goes while the others are being stopped, and not after them: the workers of a
/// DataLoader take the kernel their time. Before the rank is collected, no other group can have its number.
void Rank::end_helpers_of_failed() const {
  siginfo_t end{};
  if (::waitid(P_PID, static_cast<id_t>(child_.pid), &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid == 0) return;
  const bool well = end.si_code == CLD_EXITED && end.si_status == 0;
  if (!well && !outcome_.told_to_end) ::kill(-child_.pid, SIGKILL);
}

bool Rank::collect(int order) {
  int status = 0;
  if (!is_local() || !is_alive()) return false;
  end_helpers_of_failed();
  if (::waitpid(child_.pid, &status, WNOHANG) != child_.pid) return false;
  if (const auto reason = read_start_error(child_)) {
    outcome_.state = RankState::not_started;
    outcome_.code = *reason;
  } else if (WIFSIGNALED(status)) {
    outcome_.state = RankState::killed;
    outcome_.code = WTERMSIG(status);
  } else {
    outcome_.state = RankState::exited;
    outcome_.code = WEXITSTATUS(status);
  }
  outcome_.order = order;
  child_.process.reset();
  child_.start_error.reset();

  for (int i = 0; i < kMostBuffersAfterEnd && read_error(); ++i) {
  }
  for (int i = 0; i < kMostBuffersAfterEnd && read_output(); ++i) {
  }
  outcome_.lost_ranks = tail_.lost_ranks();
  outcome_.noticed_in = tail_.noticed_in();
  return true;
}

void Rank::signal_group(int signal_number) const {
  if (is_alive()) ::kill(-child_.pid, signal_number);
}

void Rank::finish_output() {
  while (read_output()) {
  }
  while (read_error()) {
  }
  output_.finish();
  error_.finish();
}

int Rank::copy_error() const { return std::max(output_.copy_error(), error_.copy_error()); }

}  // namespace lockstep::launcher
