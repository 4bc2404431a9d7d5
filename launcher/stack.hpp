// `lockstep stack JOB`: where every rank of a running job is, asked from another terminal.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// Reads what follows `lockstep stack`, and prints. Returns the exit code. Throws UsageError.
int run_stack(const std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
