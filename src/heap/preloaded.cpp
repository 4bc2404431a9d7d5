#include "heap/preloaded.hpp"

#include <dlfcn.h>

namespace lockstep::heap {

const lockstep_preload_library* find_preloaded() {
  static const lockstep_preload_library* const found = []() -> const lockstep_preload_library* {
    using Find = const lockstep_preload_library* (*)();
    const auto find = reinterpret_cast<Find>(::dlsym(RTLD_DEFAULT, LOCKSTEP_PRELOAD_SYMBOL));
    const lockstep_preload_library* library = find != nullptr ? find() : nullptr;
    return library != nullptr && library->version == LOCKSTEP_PRELOAD_VERSION ? library : nullptr;
  }();
  return found;
}

}  // namespace lockstep::heap
