// Which tensors of one call travel as one operation where ranks exchange messages (collective/pack.hpp).
#pragma once

#include <vector>

#include "engine/operation.hpp"

namespace lockstep::engine {

/// Puts small all-reduces with an epilogue together, those of a type up to some size; leaves the others as they are.
/// What comes out follows from types and sizes alone, so all ranks do the same. REQUIRES: each has been checked.
std::vector<Request> packed(std::vector<Request> requests);

}  // namespace lockstep::engine
