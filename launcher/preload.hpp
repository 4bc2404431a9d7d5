// The library that ranks preload, so that gradients are born in shared memory (src/heap/preload/preload.h).
#pragma once

#include <string>

namespace lockstep::launcher {

/// Its path, beside this program: in the build tree, an installed tree or a wheel's environment. Empty where it is not
/// there, where LD_PRELOAD could not name it, or where the program to be started would not bear it.
std::string find_preload(const std::string& program);

/// The value of LD_PRELOAD with the library in it: after what the user has there, but before an allocator of the
/// user's, which would otherwise never be reached by it.
std::string with_preload(const std::string& before, const std::string& library);

}  // namespace lockstep::launcher
