// `lockstep stack JOB`: where every rank of a running job is, asked from another terminal.
#pragma once

#include <string>
#include <vector>

#include "command_text.hpp"

namespace lockstep::launcher {

/// Reads what follows `lockstep stack`, and prints. Returns the exit code. Throws UsageError.
int run_stack(const std::vector<std::string>& arguments);

/// For the manual page and the completion.
CommandText describe_stack();

}  // namespace lockstep::launcher
