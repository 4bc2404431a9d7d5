// On which memory node (NUMA) this process runs, and how memory comes to lie on one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The numbers of a list as the kernel writes it, "0-3,8". nullopt: it is none. An empty one has no numbers.
std::optional<std::vector<int>> numbers_of_list(std::string_view text);

/// The node beside all CPUs on which threads of this process may run. nullopt: they lie on several nodes, or it cannot
/// be known. `root` is where the file system begins, for tests.
std::optional<int> memory_node_of_process(const std::string& root = "");

/// The same, but LOCKSTEP_MEMORY_NODE comes first: one number for all ranks of the host, or one for each, "0,0,1,1".
/// Throws Error(invalid_argument) when it is neither, or has none for this rank.
std::optional<int> memory_node_of_rank(int local_rank);

/// Pages of this memory, which begins with a page and which nobody has touched yet, will come from that node while it
/// has any left. Of a memory file this holds for all who map it. False: the kernel refuses; they come from wherever
/// the first one who touches them runs.
bool prefer_memory_node(void* first, std::size_t bytes, int node);

}  // namespace lockstep
