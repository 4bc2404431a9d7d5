// The end of a rank's stderr: what is shown when it turns out to be the rank that failed.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

/// Keeps the last 30 lines, and a Python traceback (with the exceptions it is chained to) whole.
class StderrTail {
 public:
  void add(std::string_view line);

  /// The lines, oldest first.
  std::vector<std::string> lines() const;
  bool has_traceback() const { return in_report_; }

  /// The ranks that this rank reported as lost, or as having ended the job. Who says so has failed because of somebody
  /// else.
  const std::set<int>& lost_ranks() const { return lost_ranks_; }

  /// The operation in which the loss was noticed: "all-reduce 'fc1.weight'". Empty when that was not said.
  const std::string& noticed_in() const { return noticed_in_; }

  /// How often the engine has said that an operation waits for other ranks.
  std::size_t stalls() const { return stalls_; }

 private:
  void begin_report(bool chained);
  void note_lost_rank(std::string_view line);
  void trim();

  std::deque<std::string> lines_;
  std::size_t left_out_ = 0;      // lines cut from the middle of a very long traceback
  bool in_report_ = false;        // lines_ begins with a traceback
  bool report_complete_ = false;  // its last line, the exception itself, has been seen
  std::size_t lines_after_ = 0;   // lines since then
  std::string last_sentence_;     // the last line that was not empty: tells whether a traceback continues another
  std::set<int> lost_ranks_;
  std::string noticed_in_;
  std::size_t stalls_ = 0;
};

}  // namespace lockstep::launcher
