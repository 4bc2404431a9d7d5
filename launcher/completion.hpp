// Completion of command lines by bash.
#pragma once

#include <string>
#include <vector>

#include "command_text.hpp"

namespace lockstep::launcher {

/// A script for bash that completes the words of `lockstep`.
std::string bash_completion(const std::vector<CommandText>& commands);

}  // namespace lockstep::launcher
