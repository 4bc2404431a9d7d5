// `lockstep doctor`: what is installed and works, and the command that mends what does not.
#pragma once

#include <string>
#include <vector>

#include "command_text.hpp"

namespace lockstep::launcher {

/// Reads what follows `lockstep doctor`, looks, and prints. Returns 1 when there is a problem. Throws UsageError.
int run_doctor(const std::vector<std::string>& arguments);

/// For the manual page and the completion.
CommandText describe_doctor();

/// The table that `horovodrun --check-build` shows, with what is true here.
std::string build_table();

}  // namespace lockstep::launcher
