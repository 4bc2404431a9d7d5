// The manual page lockstep(1).
#pragma once

#include <string>
#include <vector>

#include "command_text.hpp"

namespace lockstep::launcher {

/// In the language of man(7).
std::string manual_page(const std::vector<CommandText>& commands);

}  // namespace lockstep::launcher
