#include "base/memory_limit.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

namespace lockstep {
namespace {

// A limit above this is how version 1 says that there is none.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

struct Files {
  const char* limit;
  const char* usage;
  const char* active_cache;  // keys of memory.stat
  const char* inactive_cache;
};
constexpr Files kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
                             "total_inactive_file"};
constexpr Files kVersion2 = {"memory.max", "memory.current", "active_file", "inactive_file"};

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

std::uint64_t cached_in(const std::string& path, const Files& files) {
  std::ifstream file(path);
  std::string key;
  std::uint64_t value = 0, sum = 0;
  while (file >> key >> value) {
    if (key == files.active_cache || key == files.inactive_cache) sum += value;
  }
  return sum;
}

std::optional<std::size_t> left_in(const std::string& group, const Files& files) {
  const auto limit = number_in(group + "/" + files.limit);
  const auto usage = number_in(group + "/" + files.usage);
  if (!limit || !usage || *limit > kNoLimit) return std::nullopt;
  const std::uint64_t cached = std::min(cached_in(group + "/memory.stat", files), *usage);
  const std::uint64_t used = *usage - cached;
  return *limit > used ? *limit - used : 0;
}

// The group itself and all above it: each may have a limit.
std::optional<std::size_t> least_left(const std::string& mount, std::string path, const Files& files) {
  std::optional<std::size_t> least;
  for (;;) {
    if (const auto left = left_in(mount + path, files)) least = std::min(least.value_or(*left), *left);
    const std::size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

std::optional<std::size_t> memory_left(const std::string& root) {
  std::optional<std::size_t> least;
  auto consider = [&](std::optional<std::size_t> left) {
    if (left) least = std::min(least.value_or(*left), *left);
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path", or "0::/path" in version 2
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers == "memory") consider(least_left(root + "/sys/fs/cgroup/memory", path, kVersion1));
    if (controllers.empty()) consider(least_left(root + "/sys/fs/cgroup", path, kVersion2));
  }
  return least;
}

}  // namespace lockstep
