// The way of one stream (stdout or stderr) of one rank from its pipe to the screen.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "events.hpp"
#include "line_splitter.hpp"
#include "screen.hpp"
#include "stderr_tail.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

/// "[3] ", coloured by rank.
std::string rank_prefix(int rank, bool coloured);

class RankOutput {
 public:
  /// `stream` is its name for `events`, which, unless null, gets the lines instead of the screen. `tail` (may be null)
  /// receives the lines as well. All of them must outlive this object.
  RankOutput(int rank, const char* stream, Screen& screen, EventLog* events, StderrTail* tail);

  /// Keeps an exact copy of the stream in a file.
  void copy_to(UniqueFd file) { copy_ = std::move(file); }

  void feed(std::string_view data);

  /// The stream is over; an unfinished last line is completed.
  void finish();

  /// errno of a failed write to the copy, 0 if there was none. The copy ends there.
  int copy_error() const { return copy_error_; }

 private:
  void show(std::string_view text, LineEnd end);
  void copy(std::string_view data);

  void show_line(std::string_view text);

  int rank_;
  const char* stream_;
  bool has_live_line_;
  std::string prefix_;
  Screen& screen_;
  EventLog* events_;
  StderrTail* tail_;
  LineSplitter splitter_;
  UniqueFd copy_;
  int copy_error_ = 0;
};

}  // namespace lockstep::launcher
