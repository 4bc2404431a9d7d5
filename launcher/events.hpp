// `lockstep run --json`: what happens in a job, as one JSON object per line, for tools.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report.hpp"
#include "root_cause.hpp"
#include "screen.hpp"

namespace lockstep::launcher {

/// Every object has "event" and "time" (seconds since 1970). docs/running.md has the list.
class EventLog {
 public:
  /// The screen must outlive the log.
  explicit EventLog(Screen& screen) : screen_(screen) {}

  void started(const std::string& job, int restart, const std::vector<RankOutcome>& ranks);
  void output(int rank, const char* stream, std::string_view line);
  void rank_ended(const RankOutcome& outcome);
  void failed(const FailureReport& report);
  void ended(int exit_code, bool restarts);

 private:
  Screen& screen_;
};

}  // namespace lockstep::launcher
