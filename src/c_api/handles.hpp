// What several files of the C interface need of each other.
#pragma once

#include <memory>

#include "lockstep/engine.hpp"
#include "lockstep/lockstep.h"
#include "lockstep/optimizer.hpp"

struct ls_engine {
  explicit ls_engine(std::unique_ptr<lockstep::Engine> made) : owned(std::move(made)), engine(*owned) {}
  std::unique_ptr<lockstep::Engine> owned;
  lockstep::Engine& engine;
};

namespace lockstep::c_api {

/// Fields that the caller's header does not have get their defaults.
OptimizerOptions optimizer_of(const ls_optimizer_options* given);

}  // namespace lockstep::c_api
