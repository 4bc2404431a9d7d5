#include "base/census.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/hash.hpp"

namespace lockstep {
namespace {

// The whole of a small file; empty when it cannot be read.
std::string text_in(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t length = fd ? ::read(fd.get(), text, sizeof text) : -1;
  return {text, length > 0 ? static_cast<std::size_t>(length) : 0};
}

std::vector<pid_t> threads_of_this_process() {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/task"), &::closedir);
  std::vector<pid_t> threads;
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (const long number = std::strtol(entry->d_name, nullptr, 10); number > 0)
      threads.push_back(static_cast<pid_t>(number));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

bool is_private_memory(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t first = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &first, &end, access) != 3) return false;
    if (first <= address && address < end) return access[3] == 'p';
  }
  return false;
}

// Only a thread of this process can end the system call in which the thread is. The kernel says "running" instead for
// one that was woken and has not run yet.
bool sleeps_until_woken_from_here(const std::string& system_call) {
  long number = -1;
  std::uint64_t word = 0, operation = 0, expected = 0, limit = 0;
  if (std::sscanf(system_call.c_str(), "%ld %lx %lx %lx %lx", &number, &word, &operation, &expected, &limit) != 5)
    return false;
  const std::uint64_t command = operation & FUTEX_CMD_MASK;
  if (number != SYS_futex || (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET) || limit != 0) return false;
  return (operation & FUTEX_PRIVATE_FLAG) != 0 || is_private_memory(word);
}

// How often the thread has gone to sleep.
std::optional<std::uint64_t> sleeps_of(const std::string& folder) {
  static constexpr char kKey[] = "\nvoluntary_ctxt_switches:";
  const std::string status = text_in(folder + "/status");
  const std::size_t found = status.find(kKey);
  if (found == std::string::npos) return std::nullopt;
  return std::strtoull(status.c_str() + found + sizeof kKey - 1, nullptr, 10);
}

bool has_set_an_alarm() {
  itimerval alarm{};
  if (::getitimer(ITIMER_REAL, &alarm) != 0 || alarm.it_value.tv_sec != 0 || alarm.it_value.tv_usec != 0) return true;
  return !text_in("/proc/self/timers").empty();
}

// Threads are of the process, so this is too.
struct LeftOut {
  std::mutex mutex;
  std::vector<pid_t> threads;
};

LeftOut& left_out() {
  static LeftOut left_out;
  return left_out;
}

bool is_left_out(pid_t thread) {
  const std::lock_guard lock(left_out().mutex);
  return std::ranges::find(left_out().threads, thread) != left_out().threads.end();
}

}  // namespace

pid_t this_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

void leave_out_of_census(pid_t thread) {
  if (is_left_out(thread)) return;
  const std::lock_guard lock(left_out().mutex);
  left_out().threads.push_back(thread);
}

void return_to_census(pid_t thread) {
  const std::lock_guard lock(left_out().mutex);
  std::erase(left_out().threads, thread);
}

std::optional<std::uint64_t> threads_at_rest(std::span<const pid_t> known) {
  if (has_set_an_alarm()) return std::nullopt;
  Hasher seen;
  const std::vector<pid_t> threads = threads_of_this_process();
  if (threads.empty()) return std::nullopt;
  for (const pid_t thread : threads) {
    if (std::find(known.begin(), known.end(), thread) != known.end() || is_left_out(thread)) continue;
    const std::string folder = fmt::format("/proc/self/task/{}", thread);
    // First the state, then the count: had the thread run between the states seen in two looks, it would have gone to
    // sleep once more before the second, and the counts would differ.
    if (!sleeps_until_woken_from_here(text_in(folder + "/syscall"))) return std::nullopt;
    const auto sleeps = sleeps_of(folder);
    if (!sleeps) return std::nullopt;
    seen.add(static_cast<std::uint64_t>(thread));
    seen.add(*sleeps);
  }
  return seen.value();
}

}  // namespace lockstep
