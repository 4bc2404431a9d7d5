#include "weights/fence.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/error.hpp"

namespace lockstep::weights {
namespace {

constexpr int kEndLimitMs = 5000;

bool has_ended_within(const Fd& process, int limit_ms) {
  pollfd wait{.fd = process.get(), .events = POLLIN, .revents = 0};
  int got = 0;
  do {
    got = ::poll(&wait, 1, limit_ms);
  } while (got < 0 && errno == EINTR);
  return got > 0;
}

}  // namespace

Fence::Fence(const std::vector<pid_t>& pids) : pids_(pids) {
  for (const pid_t pid : pids) {
    Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process && errno != ESRCH) throw_errno(fmt::format("watch process {}, which shares weights", pid));
    processes_.push_back(std::move(process));
  }
}

void Fence::end(std::size_t seat) {
  const Fd& process = processes_[seat];
  if (!process || pids_[seat] == ::getpid() || has_ended_within(process, 0)) return;
  ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  if (has_ended_within(process, kEndLimitMs)) return;
  throw Error(
      ErrorCode::system,
      fmt::format("process {} was left behind, could still write into the shared weights, and does not end. End "
                  "it (kill -9 {}), then recover again.",
                  pids_[seat], pids_[seat]));
}

}  // namespace lockstep::weights
