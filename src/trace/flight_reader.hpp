// The flight record of another process, looked at from outside: the process need not help, and may be stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trace/flight_record.hpp"
#include "trace/ticks.hpp"

namespace lockstep::trace {

/// What a process leaves in a memory file with this name, for whoever looks at its open files: where its record is.
struct FlightBeacon {
  static constexpr const char* kName = "lockstep-flight";
  static constexpr std::uint64_t kMagic = 0x3174'6867'696c'66ULL;

  std::uint64_t magic;
  std::uint64_t slots;  ///< address in that process
  std::uint64_t count;
  ClockPoint made;
  std::int64_t process;  ///< a forked child inherits the file, but not the engine
};

/// An operation of that process, as far as people want to know.
struct SeenOperation {
  std::string kind;
  std::string name;
  std::string note;  ///< whom it waits for, or why it failed
  FlightRecord::State state;
  bool is_step;
  double seconds;  ///< since it was submitted

  bool is_open() const { return state == FlightRecord::State::pending || state == FlightRecord::State::running; }
};

class FlightReader {
 public:
  /// In order of submission. Nothing when the process has no engine, or its memory may not be read (another user's, or
  /// kernel.yama.ptrace_scope). With several engines, that of the newest.
  static std::optional<std::vector<SeenOperation>> read(pid_t process);
};

}  // namespace lockstep::trace
