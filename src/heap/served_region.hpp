// Allocations of this process that come from shared memory: how the preloaded library (preload/preload.h) is given
// some.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "heap/preload/preload.h"

namespace lockstep::heap {

/// As many blocks of these sizes as fit into `budget` bytes: first one of each, then a second one of each, for where
/// one is in use while the next is computed. Tiny ones are left out: they are copied in less time than it takes to say
/// where they lie.
std::vector<lockstep_preload_class> classes_for(const std::vector<std::size_t>& sizes, std::size_t budget);

/// Bytes that suffice for two blocks of each size.
std::size_t room_for_all(const std::vector<std::size_t>& sizes);

/// Shared memory that blocks are to come from.
struct Room {
  void* base = nullptr;  ///< the beginning of a page
  std::size_t bytes = 0;
  /// Makes sure that a part can be touched. Called inside of allocations, never after the region is retired.
  std::function<bool(std::byte* first, std::size_t bytes)> commit;
  std::shared_ptr<const void> memory;  ///< what `base` lies in: kept until the last block is freed
};

/// Begins to serve blocks of these classes. The handle for the library's `retire`, or -1, with the reason in `why_not`.
int serve(const lockstep_preload_library& library, const std::vector<lockstep_preload_class>& classes, Room room,
          int (*meant)(), std::string& why_not);

}  // namespace lockstep::heap
