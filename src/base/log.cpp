#include "base/log.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace lockstep::log {
namespace {

Level least_level() {
  const char* wanted = std::getenv("LOCKSTEP_LOG");
  const std::string_view text = wanted != nullptr ? wanted : "warn";
  if (text == "debug") return Level::debug;
  if (text == "info") return Level::info;
  if (text == "error") return Level::error;
  return Level::warn;
}

const char* name_of(Level level) {
  switch (level) {
    case Level::debug:
      return "debug";
    case Level::info:
      return "info";
    case Level::warn:
      return "warning";
    case Level::error:
      return "error";
  }
  return "error";
}

}  // namespace

void write(Level level, int rank, const std::string& message) {
  static const Level least = least_level();
  if (level < least) return;
  // One system call per line, so that lines of several threads and ranks stay whole.
  const std::string line = fmt::format("lockstep {}: rank {}: {}\n", name_of(level), rank, message);
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace lockstep::log
