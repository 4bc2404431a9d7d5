// The memory of another process, read and written by the system (process_vm_readv), if it lets this one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

enum class Reach {
  done,
  gone,      // there is no such process any more, or it has ended and waits for its parent
  refused,   // the system does not let this process
  no_memory  // nothing lies there, or no longer: a process that is ending gives its memory back first
};

/// What is not `done` may have been done in part, and errno tells why.
Reach read_process(pid_t process, std::uint64_t address, std::span<std::byte> to);
Reach write_process(pid_t process, std::uint64_t address, std::span<const std::byte> from);

}  // namespace lockstep
