// Whether a process can still do anything by itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace lockstep {

/// Looks at every thread of this process except those in `known`. nullopt unless each of them sleeps until another
/// thread of this process wakes it: in a wait for a lock, a condition or another thread's end, without a time limit. A
/// thread that runs, sleeps for a time, or waits for a file, a socket, a signal or another process may go on at any
/// moment. When two looks give the same value, none of these threads has run from the first to the second.
///
/// Signal handlers are not looked for; a process that has set itself an alarm counts as one that may go on.
std::optional<std::uint64_t> threads_at_rest(std::span<const pid_t> known);

/// The number of the calling thread. (gettid() came with glibc 2.30; the library runs with older ones.)
pid_t this_thread();

/// From now on `threads_at_rest` does not look at this thread of a library, which never does the program's work.
void leave_out_of_census(pid_t thread);

/// Before such a thread ends: another may get its number.
void return_to_census(pid_t thread);

using Census = std::function<std::optional<std::uint64_t>(std::span<const pid_t> known)>;

}  // namespace lockstep
