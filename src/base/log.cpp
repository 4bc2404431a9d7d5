#include "base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

namespace lockstep::log {
namespace {

spdlog::logger& logger() {
  // Deliberately leaked: a thread that logs while the process exits must still find it.
  static auto* instance = [] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("lockstep %l: %v");
    const char* level = std::getenv("LOCKSTEP_LOG");
    made->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::warn);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void write(Level level, int rank, const std::string& message) {
  logger().log(to_spdlog(level), "rank {}: {}", rank, message);
}

}  // namespace lockstep::log
