// What the engine says on standard error. Talk is rare: each line has a reader and a next step.
#pragma once

#include <string>

namespace lockstep::log {

enum class Level { debug, info, warn, error };

/// Lines are prefixed with "lockstep" and the rank, and written whole. Level from LOCKSTEP_LOG (default: warn).
void write(Level level, int rank, const std::string& message);

inline void debug(int rank, const std::string& message) { write(Level::debug, rank, message); }
inline void info(int rank, const std::string& message) { write(Level::info, rank, message); }
inline void warn(int rank, const std::string& message) { write(Level::warn, rank, message); }
inline void error(int rank, const std::string& message) { write(Level::error, rank, message); }

}  // namespace lockstep::log
