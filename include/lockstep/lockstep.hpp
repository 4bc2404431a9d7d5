// All of Lockstep's C++ interface.
#pragma once

#include "lockstep/block.hpp"
#include "lockstep/engine.hpp"
#include "lockstep/epilogue.hpp"
#include "lockstep/error.hpp"
#include "lockstep/group.hpp"
#include "lockstep/leaves.hpp"
#include "lockstep/optimizer.hpp"
#include "lockstep/options.hpp"
#include "lockstep/shared_weights.hpp"
#include "lockstep/types.hpp"
#include "lockstep/version.hpp"
#include "lockstep/work.hpp"
