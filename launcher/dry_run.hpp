// `lockstep run --dry-run`: what would be started.
#pragma once

#include <string>

#include "program.hpp"
#include "run_options.hpp"

namespace lockstep::launcher {

/// One line per rank that a shell could run: the settings that differ from the present environment, and the command.
/// What is known only in a job that runs (its name, secret and port) is left out.
std::string describe_job(const RunOptions& options, const Program& program);

/// `text` as one word of a shell.
std::string shell_quoted(const std::string& text);

}  // namespace lockstep::launcher
