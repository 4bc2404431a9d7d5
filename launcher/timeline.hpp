// `lockstep timeline merge OUT FILE...`: one file of the timelines that the ranks of a job wrote.
#pragma once

#include <string>
#include <vector>

#include "command_text.hpp"

namespace lockstep::launcher {

/// Reads what follows `lockstep timeline`, and does it. Returns the exit code. Throws UsageError, and lockstep::Error
/// when a file cannot be read or written.
int run_timeline(const std::vector<std::string>& arguments);

/// For the manual page and the completion.
CommandText describe_timeline();

}  // namespace lockstep::launcher
