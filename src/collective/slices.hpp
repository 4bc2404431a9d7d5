// Which part of a tensor belongs to which rank, when each reduces a part of its own. Pure.
#pragma once

#include <cstddef>

#include "collective/call.hpp"
#include "lockstep/epilogue.hpp"

namespace lockstep::collective {

/// The owned_slice of a party, or what the call says instead; none for one that has joined.
ElementRange slice_of(const Call& call, std::size_t party);

}  // namespace lockstep::collective
