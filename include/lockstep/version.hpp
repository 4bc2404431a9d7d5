// The version of the library, as one number set in the build.
#pragma once

#include "lockstep/export.hpp"

namespace lockstep {

/// "major.minor.patch". Ranks of one job must agree on it.
LOCKSTEP_API const char* version();

}  // namespace lockstep
