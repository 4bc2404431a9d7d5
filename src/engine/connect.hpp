// Finds the other ranks and makes the transport that reaches them.
#pragma once

#include <memory>

#include "engine/core.hpp"
#include "lockstep/options.hpp"

namespace lockstep::engine {

/// Returns when every rank is there and alive. Throws Error(invalid_argument) or Error(unavailable).
std::shared_ptr<Core> connect(Options options);

/// A new engine among those that are left of a failed world. Throws as Core::continue_with_survivors does.
std::shared_ptr<Core> connect_survivors(Core& failed);

}  // namespace lockstep::engine
