// Allocations of this process that come out of its arena, so that tensors are born where peers can work on them.
//
// The preloaded library (heap/preload/preload.h) serves them. It gets a region of the arena for the sizes that an
// adapter names, such as those of gradients; all other allocations stay private.
#pragma once

#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "heap/preload/preload.h"
#include "transport/transport.hpp"

namespace lockstep::engine {

/// Thread-safe.
class ServedAllocations {
 public:
  /// library: nullptr where none is preloaded. shared: nullptr where ranks share no memory.
  ServedAllocations(const lockstep_preload_library* library, transport::SharedMemory* shared, int rank);
  ~ServedAllocations() { retire(); }
  ServedAllocations(const ServedAllocations&) = delete;
  ServedAllocations& operator=(const ServedAllocations&) = delete;

  /// From now on blocks of these sizes come from the heap: two for each entry at most, and fewer where the arena is
  /// small. Tiny ones are left out. `meant`: see lockstep_preload_region. False: nothing is served, which rank 0 says
  /// on the log, with the reason.
  bool serve(const std::vector<std::size_t>& sizes, int (*meant)());

  /// Nothing is served any more. Blocks in use stay valid, and the memory mapped until the last of them is freed.
  void retire();

 private:
  std::string why_not(const std::vector<std::size_t>& sizes, int (*meant)());
  void say(const std::string& sentence);

  const lockstep_preload_library* library_;
  transport::SharedMemory* shared_;
  int rank_;
  std::mutex mutex_;
  // All below is protected by mutex_.
  std::vector<int> regions_;
  std::size_t bytes_ = 0;  // of all regions
  std::set<std::string> said_;
};

}  // namespace lockstep::engine
