// The cores of this machine in the order of their neighbourhood, and how they are shared out among ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

enum class Binding {
  automatic,  ///< to memory nodes where the machine has several, otherwise not at all
  none,
  node,  ///< each rank to the memory nodes on which its share of the cores lies
  core,  ///< each rank to its share of the cores
};

/// A core and its hardware threads, by the numbers that the kernel gives them.
struct Core {
  std::vector<int> cpus;
  int node = 0;  ///< of the memory beside it
};

/// True when hwloc's library is installed. It is loaded when it is needed, so that Lockstep runs without it.
bool has_hwloc();

/// The cores that this process may use, neighbours beside each other. Nothing without hwloc.
std::optional<std::vector<Core>> read_cores();

/// Memory nodes of the machine, as the kernel lists them. At least 1.
int memory_nodes();

/// The CPUs of each rank. Ranks get neighbouring cores, as many as each other (one more or less).
/// Empty: nothing is bound. That is so without a wish, when nothing would be gained, or when there are more ranks than
/// cores and binding to cores would pile them up.
std::vector<std::vector<int>> share_out(const std::vector<Core>& cores, int ranks, Binding binding);

/// The CPUs of each rank of a job on this machine; empty as above. Throws UsageError for a wish that needs hwloc.
std::vector<std::vector<int>> bind_ranks(int ranks, Binding binding);

/// {0, 1, 2, 3, 8} as "0-3,8".
std::string list_text(const std::vector<int>& numbers);

}  // namespace lockstep::launcher
