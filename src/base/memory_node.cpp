#include "base/memory_node.hpp"

#include <dirent.h>
#include <fmt/core.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "base/environment.hpp"
#include "lockstep/error.hpp"

namespace lockstep {
namespace {

constexpr int kMostNumber = 65'535;  // of a CPU or node; the kernel has fewer
constexpr int kMostNodes = 1024;     // the kernel's own limit

// The number with which the text begins, which is taken off. nullopt: it does not begin with one.
std::optional<int> take_number(std::string_view& text, int most) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return value;
}

bool take_sign(std::string_view& text, char sign) {
  if (text.empty() || text.front() != sign) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<std::vector<int>> list_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file) return std::nullopt;
  std::getline(file, line);  // that of a node without CPUs is empty
  return numbers_of_list(line);
}

std::map<int, int> nodes_by_cpu(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  std::map<int, int> nodes;
  for (const int node : list_in(folder + "online").value_or(std::vector<int>{})) {
    const auto cpus = list_in(fmt::format("{}node{}/cpulist", folder, node));
    if (!cpus) return {};  // half a truth would be a wrong one
    for (const int cpu : *cpus) nodes[cpu] = node;
  }
  return nodes;
}

// Of one thread; nullopt when it has ended meanwhile.
std::optional<std::vector<int>> cpus_allowed(const std::string& status_path) {
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  std::ifstream status(status_path);
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, kKey.size(), kKey) == 0) return numbers_of_list(std::string_view(line).substr(kKey.size()));
  }
  return std::nullopt;
}

std::vector<std::string> statuses_of_threads(const std::string& root) {
  const std::string folder = root + "/proc/self/task/";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(folder.c_str()), &::closedir);
  std::vector<std::string> paths;
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (entry->d_name[0] != '.') paths.push_back(folder + entry->d_name + "/status");
  }
  return paths;
}

}  // namespace

std::optional<std::vector<int>> numbers_of_list(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  std::vector<int> numbers;
  if (text.empty()) return numbers;
  do {
    const auto first = take_number(text, kMostNumber);
    const auto last = first && take_sign(text, '-') ? take_number(text, kMostNumber) : first;
    if (!first || !last || *last < *first) return std::nullopt;
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
    // No list says a number twice; this one could make us take memory without end.
    if (numbers.size() > kMostNumber + 1) return std::nullopt;
  } while (take_sign(text, ','));
  if (!text.empty()) return std::nullopt;
  return numbers;
}

std::optional<int> memory_node_of_process(const std::string& root) {
  const auto nodes = nodes_by_cpu(root);
  std::set<int> used;
  for (const std::string& path : statuses_of_threads(root)) {
    for (const int cpu : cpus_allowed(path).value_or(std::vector<int>{})) {
      // What is on no node is not there: a list of what is allowed also has CPUs that are switched off.
      if (const auto found = nodes.find(cpu); found != nodes.end()) used.insert(found->second);
    }
  }
  return used.size() == 1 ? std::optional(*used.begin()) : std::nullopt;
}

std::optional<int> memory_node_of_rank(int local_rank) {
  const auto given = text_from("LOCKSTEP_MEMORY_NODE");
  if (!given) return memory_node_of_process();
  std::string_view text = *given;
  std::vector<int> nodes;
  do {
    const auto node = take_number(text, kMostNodes - 1);
    if (!node) break;
    nodes.push_back(*node);
  } while (take_sign(text, ','));
  const auto index = nodes.size() == 1 ? 0 : static_cast<std::size_t>(local_rank);
  if (text.empty() && given->back() != ',' && index < nodes.size()) return nodes[index];
  throw Error(ErrorCode::invalid_argument,
              fmt::format("LOCKSTEP_MEMORY_NODE={} has no memory node for local rank {}. Give one number for all ranks "
                          "of the host, or one for each, such as 0,0,1,1; or unset it.",
                          *given, local_rank));
}

bool prefer_memory_node(void* first, std::size_t bytes, int node) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kMostNodes) return false;
  std::array<unsigned long, kMostNodes / kBits> mask{};
  mask[static_cast<std::size_t>(node) / kBits] = 1UL << (static_cast<std::size_t>(node) % kBits);
  // Preferred, not bound: where the node is full, memory from another one is better than death. The kernel takes the
  // number of bits less one.
  return ::syscall(SYS_mbind, first, bytes, MPOL_PREFERRED, mask.data(), kMostNodes + 1, 0) == 0;
}

}  // namespace lockstep
