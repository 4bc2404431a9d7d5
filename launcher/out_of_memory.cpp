#include "out_of_memory.hpp"

#include <algorithm>
#include <fstream>

namespace lockstep::launcher {

namespace {

/// Files with the counter of this process's control group: version 2, then version 1. A container may show its own
/// group as the root of the mounted tree, so that is looked at as well.
std::vector<std::string> control_group_files() {
  std::vector<std::string> files;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      files.push_back("/sys/fs/cgroup" + group + "/memory.events");
      files.push_back("/sys/fs/cgroup/memory.events");
    } else if (controllers == "memory") {
      files.push_back("/sys/fs/cgroup/memory" + group + "/memory.oom_control");
      files.push_back("/sys/fs/cgroup/memory/memory.oom_control");
    }
  }
  return files;
}

}  // namespace

std::optional<long> read_oom_kills(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  long value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

OutOfMemoryWatch::OutOfMemoryWatch() {
  const auto watch = [this](const std::string& path, MemoryEvidence meaning) {
    if (const auto start = read_oom_kills(path)) counters_.push_back({path, meaning, *start});
  };
  for (const std::string& path : control_group_files()) watch(path, MemoryEvidence::control_group);
  watch("/proc/vmstat", MemoryEvidence::machine);
}

MemoryEvidence OutOfMemoryWatch::evidence() const {
  MemoryEvidence best = MemoryEvidence::none;
  for (const Counter& counter : counters_) {
    const auto now = read_oom_kills(counter.path);
    if (now && *now > counter.start) best = std::max(best, counter.meaning);
  }
  return best;
}

}  // namespace lockstep::launcher
