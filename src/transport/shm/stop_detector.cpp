#include "transport/shm/stop_detector.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.hpp"

namespace lockstep::transport::shm {
namespace {

constexpr std::chrono::milliseconds kInterval{100};  // between two looks at one peer
constexpr std::chrono::milliseconds kLate{1000};     // a longer gap means that this process did not run either

// The letter after the command in /proc/PID/stat, or 0. The command is in parentheses and may contain any character.
char process_state(pid_t pid) {
  Fd fd(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = fd ? ::read(fd.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* end = std::strrchr(text, ')');
  return end != nullptr && end + 2 < text + length ? end[2] : '\0';
}

}  // namespace

bool StopDetector::stopped(int rank, pid_t pid) {
  std::lock_guard lock(mutex_);
  Watch& watch = watched_[static_cast<std::size_t>(rank)];
  const auto now = Clock::now();
  const auto gap = now - watch.looked;
  if (gap < kInterval) return watch.stopped && now - watch.since >= kPatience;
  watch.looked = now;
  if (process_state(pid) != 'T') {
    watch.stopped = false;
    return false;
  }
  if (!watch.stopped || gap > kLate) {
    watch.stopped = true;
    watch.since = now;
  }
  return now - watch.since >= kPatience;
}

}  // namespace lockstep::transport::shm
