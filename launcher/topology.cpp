#include "topology.hpp"

#include <dlfcn.h>
#include <fmt/core.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>

#include "base/memory_node.hpp"
#include "errors.hpp"

namespace lockstep::launcher {

namespace {

/// The functions of libhwloc that are used. Loaded by name: the wheel must run on machines that do not have it, and a
/// static hwloc would bring libudev along.
class Hwloc {
 public:
  static const Hwloc* find() {
    static const Hwloc library;
    return library.usable_ ? &library : nullptr;
  }

  decltype(&hwloc_topology_init) init;
  decltype(&hwloc_topology_set_flags) set_flags;
  decltype(&hwloc_topology_load) load;
  decltype(&hwloc_topology_destroy) destroy;
  decltype(&hwloc_get_type_depth) type_depth;
  decltype(&hwloc_get_nbobjs_by_depth) count_at;
  decltype(&hwloc_get_obj_by_depth) object_at;
  decltype(&hwloc_bitmap_next) next_in;

 private:
  Hwloc() {
    void* handle = ::dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);  // hwloc 2.x
    usable_ = handle != nullptr && take(handle, init, "hwloc_topology_init") &&
              take(handle, set_flags, "hwloc_topology_set_flags") && take(handle, load, "hwloc_topology_load") &&
              take(handle, destroy, "hwloc_topology_destroy") && take(handle, type_depth, "hwloc_get_type_depth") &&
              take(handle, count_at, "hwloc_get_nbobjs_by_depth") &&
              take(handle, object_at, "hwloc_get_obj_by_depth") && take(handle, next_in, "hwloc_bitmap_next");
  }

  template <typename Function>
  static bool take(void* handle, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    return function != nullptr;
  }

  bool usable_ = false;
};

}  // namespace

bool has_hwloc() { return Hwloc::find() != nullptr; }

std::optional<std::vector<Core>> read_cores() {
  const Hwloc* hwloc = Hwloc::find();
  hwloc_topology_t opened = nullptr;
  if (hwloc == nullptr || hwloc->init(&opened) != 0) return std::nullopt;
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> topology(opened, hwloc->destroy);
  // A batch system or `taskset` may have given us a part of the machine only.
  hwloc->set_flags(opened, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  if (hwloc->load(opened) != 0) return std::nullopt;

  int depth = hwloc->type_depth(opened, HWLOC_OBJ_CORE);
  if (depth < 0) depth = hwloc->type_depth(opened, HWLOC_OBJ_PU);  // some virtual machines tell of no cores
  std::vector<Core> cores;
  for (unsigned i = 0; i < hwloc->count_at(opened, depth); ++i) {
    const hwloc_obj_t object = hwloc->object_at(opened, depth, i);
    Core core;
    for (int cpu = -1; (cpu = hwloc->next_in(object->cpuset, cpu)) >= 0;) core.cpus.push_back(cpu);
    core.node = std::max(0, hwloc->next_in(object->nodeset, -1));
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  return cores;
}

int memory_nodes() {
  std::string online;
  std::getline(std::ifstream("/sys/devices/system/node/online"), online);  // "0" or "0-3,6"
  const auto nodes = numbers_of_list(online);
  return nodes ? std::max(1, static_cast<int>(nodes->size())) : 1;
}

std::vector<std::vector<int>> share_out(const std::vector<Core>& cores, int ranks, Binding binding) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.node);
  if (binding == Binding::automatic) binding = nodes.size() > 1 ? Binding::node : Binding::none;
  const bool piles_up = binding == Binding::core && static_cast<std::size_t>(ranks) > cores.size();
  if (binding == Binding::none || cores.empty() || piles_up) return {};

  std::vector<std::vector<int>> result(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    const std::size_t begin = rank * cores.size() / result.size();
    const std::size_t end = std::max(begin + 1, (rank + 1) * cores.size() / result.size());
    std::set<int> near;
    for (std::size_t i = begin; i < end; ++i) near.insert(cores[i].node);
    for (std::size_t i = 0; i < cores.size(); ++i) {
      const bool mine = binding == Binding::core ? begin <= i && i < end : near.count(cores[i].node) != 0;
      if (mine) result[rank].insert(result[rank].end(), cores[i].cpus.begin(), cores[i].cpus.end());
    }
    std::sort(result[rank].begin(), result[rank].end());
  }
  return result;
}

std::vector<std::vector<int>> bind_ranks(int ranks, Binding binding) {
  // Not even hwloc is loaded where it could change nothing.
  if (binding == Binding::none || (binding == Binding::automatic && memory_nodes() == 1)) return {};
  const auto cores = read_cores();
  if (cores) return share_out(*cores, ranks, binding);
  if (binding == Binding::automatic) return {};
  throw UsageError("--bind needs hwloc to know the machine. Install it: sudo apt-get install libhwloc15");
}

std::string list_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lockstep::launcher
