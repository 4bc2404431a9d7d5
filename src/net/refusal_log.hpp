// Tells people that strangers were turned away: at once, then at most once a minute, however many come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "net/stream.hpp"

namespace lockstep::net {

class RefusalLog {
 public:
  static constexpr std::chrono::minutes kPause{1};

  /// The line to write now, if it is time for one.
  std::optional<std::string> add(const std::string& from, const std::string& why, Clock::time_point now);

  /// The same for what has been held back; called from time to time.
  std::optional<std::string> due(Clock::time_point now);

  std::uint64_t total() const { return total_; }

 private:
  std::uint64_t total_ = 0;
  std::uint64_t untold_ = 0;
  std::string last_;
  std::optional<Clock::time_point> told_;
};

}  // namespace lockstep::net
