// Where the preloaded library (heap/preload/preload.h) is in this process.
#pragma once

#include "heap/preload/preload.h"

namespace lockstep::heap {

/// nullptr where it is not preloaded, or is of another version.
const lockstep_preload_library* find_preloaded();

}  // namespace lockstep::heap
