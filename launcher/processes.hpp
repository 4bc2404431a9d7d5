// The processes of this machine as /proc shows them, and how to end some of them for sure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unique_fd.hpp"

namespace lockstep::launcher {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';      ///< the letter of ps: R, S, D, T (stopped), Z (dead, not yet collected), ...
  bool exiting = false;  ///< on its way out: the kernel is freeing what it had

  bool is_alive() const { return state != 'Z' && state != 'X'; }
};

/// Nothing when there is no such process.
std::optional<ProcessInfo> read_process(pid_t pid);

/// Reads one line of /proc/PID/stat.
std::optional<ProcessInfo> parse_process_stat(const std::string& line);

std::vector<ProcessInfo> list_processes();

/// All living processes that descend from `ancestor`, without `except` and what descends from that.
std::vector<pid_t> living_descendants(pid_t ancestor, pid_t except);

/// True when the process was started with NAME=value (`setting`) in its environment. False when it may not be read.
bool has_in_environment(pid_t pid, const std::string& setting);

/// The value of NAME with which the process was started. Nothing when there is none, or it may not be read.
std::optional<std::string> read_from_environment(pid_t pid, const std::string& name);

/// A descriptor that becomes readable when the process ends, and names it even if its number is used again.
UniqueFd open_process(pid_t pid);

/// Ends all processes that `find` returns, asking again until it returns none: SIGTERM first and SIGKILL after
/// `patience`, or SIGKILL at once when `patience` is zero. Gives up two seconds after SIGKILL.
/// Returns the processes that could not be ended (in practice: they hang in the kernel).
std::vector<pid_t> end_processes(const std::function<std::vector<pid_t>()>& find, std::chrono::milliseconds patience);

/// Collects dead children, so that they do not stay as zombies, except those in `except`.
void collect_dead_children(const std::function<bool(pid_t)>& except);

}  // namespace lockstep::launcher
