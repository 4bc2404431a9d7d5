// One job on this machine: starts the ranks, shows their output, brings all of them to an end, and starts them again
// if that is wanted.
#pragma once

#include "child.hpp"
#include "program.hpp"
#include "run_options.hpp"

namespace lockstep::launcher {

/// Runs the job until nothing of it is left. Returns the launcher's exit code.
/// Throws UnavailableError when the machine has too little for it, and std::system_error when the operating system
/// refuses something; nothing is left running then either. REQUIRES: descriptors 0 to 2 are open, and the process has
/// one thread.
int run_job(const RunOptions& options, const Program& program);

/// What ranks get back of what a process that starts `ranks` of them changes for itself: it outlives a reader that has
/// gone away, and may hold the streams of all of them open.
InheritedState take_over_limits(int ranks);

/// The kernel would kill a rank as soon as it has begun, or its starter; to say so now is kinder. Throws
/// UnavailableError.
void refuse_too_little_memory(int ranks);

}  // namespace lockstep::launcher
