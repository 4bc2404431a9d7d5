#include "processes.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kExitingFlag = 0x4;  // PF_EXITING of the kernel's task flags

/// Empty when the process is gone. Not by std::ifstream, which throws if that happens between opening and reading.
std::string read_proc_file(pid_t pid, const char* name) {
  std::string text;
  const UniqueFd file(::open(fmt::format("/proc/{}/{}", pid, name).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; file && (count = ::read(file.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

/// Waits until all of them have ended, or a new look is due: some may have started others meanwhile.
void wait_for_ends(const std::vector<UniqueFd>& processes, milliseconds at_most) {
  const auto deadline = Clock::now() + at_most;
  for (const UniqueFd& process : processes) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    pollfd entry{process.get(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(std::max<long>(left, 0)));
  }
}

}  // namespace

std::optional<ProcessInfo> parse_process_stat(const std::string& line) {
  // "pid (name) state parent group session tty foreground flags ..."; the name may hold anything, even ")".
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  ProcessInfo info;
  unsigned flags = 0;
  info.pid = std::atoi(line.c_str());
  if (std::sscanf(line.c_str() + name_end + 1, " %c %d %d %*d %*d %*d %u", &info.state, &info.parent, &info.group,
                  &flags) != 4) {
    return std::nullopt;
  }
  info.exiting = (flags & kExitingFlag) != 0;
  return info;
}

std::optional<ProcessInfo> read_process(pid_t pid) { return parse_process_stat(read_proc_file(pid, "stat")); }

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return result;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (auto info = read_process(std::atoi(entry->d_name))) result.push_back(*info);
  }
  return result;
}

std::vector<pid_t> living_descendants(pid_t ancestor, pid_t except) {
  const std::vector<ProcessInfo> processes = list_processes();
  std::set<pid_t> family = {ancestor};
  std::vector<pid_t> result;
  // The list is in no useful order, so it is walked until it brings nothing new: once per generation.
  for (bool grown = true; grown;) {
    grown = false;
    for (const ProcessInfo& process : processes) {
      if (process.pid == except || family.count(process.parent) == 0) continue;
      if (!family.insert(process.pid).second) continue;
      grown = true;
      if (process.is_alive()) result.push_back(process.pid);
    }
  }
  return result;
}

bool has_in_environment(pid_t pid, const std::string& setting) {
  const std::string environment = '\0' + read_proc_file(pid, "environ");
  return environment.find('\0' + setting + '\0') != std::string::npos;
}

std::optional<std::string> read_from_environment(pid_t pid, const std::string& name) {
  const std::string environment = '\0' + read_proc_file(pid, "environ");
  const std::string start = '\0' + name + '=';
  const std::size_t found = environment.find(start);
  if (found == std::string::npos) return std::nullopt;
  const std::size_t begin = found + start.size();
  return environment.substr(begin, environment.find('\0', begin) - begin);
}

UniqueFd open_process(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

std::vector<pid_t> end_processes(const std::function<std::vector<pid_t>()>& find, milliseconds patience) {
  const auto kill_at = Clock::now() + patience;
  const auto give_up_at = kill_at + std::chrono::seconds(2);
  std::set<pid_t> asked;
  while (true) {
    const std::vector<pid_t> wanted = find();
    const auto now = Clock::now();
    if (wanted.empty() || now >= give_up_at) return wanted;
    std::vector<UniqueFd> waiting;
    for (const pid_t pid : wanted) {
      UniqueFd process = open_process(pid);
      if (!process) continue;
      const bool kill_now = now >= kill_at;
      if (kill_now || asked.insert(pid).second) {
        ::syscall(SYS_pidfd_send_signal, process.get(), kill_now ? SIGKILL : SIGTERM, nullptr, 0);
      }
      waiting.push_back(std::move(process));
    }
    const auto until = now >= kill_at ? milliseconds(100) : std::chrono::ceil<milliseconds>(kill_at - now);
    wait_for_ends(waiting, std::min(until, milliseconds(100)));
  }
}

void collect_dead_children(const std::function<bool(pid_t)>& except) {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || except(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace lockstep::launcher
