// A rank as the job sees it: a process, its two streams, and how it ended.
#pragma once

#include <string>
#include <string_view>

#include "child.hpp"
#include "rank_output.hpp"
#include "root_cause.hpp"
#include "screens.hpp"
#include "stderr_tail.hpp"

namespace lockstep::launcher {

class Rank {
 public:
  /// With `events` (may be null) the lines of the rank become events. Both must outlive the rank.
  /// Not movable: its streams refer to its other members.
  Rank(int number, Screens& screens, EventLog* events);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Keeps exact copies of both streams in `folder`, which is made. Throws UsageError when that is not possible.
  void keep_copies(const std::string& folder);

  void start(const ChildSettings& settings);

  /// It runs on another host, whose agent says what happens to it.
  void follow(const std::string& host) { outcome_.host = host; }
  void set_pid(pid_t pid) { outcome_.pid = pid; }
  void set_stopped(bool stopped) { stopped_ = stopped; }
  void take_output(std::string_view bytes) { output_.feed(bytes); }
  void take_error(std::string_view bytes) { error_.feed(bytes); }

  /// The end of a rank on another host. Returns true unless that was known.
  bool take_end(RankState state, int code, int order);

  int number() const { return outcome_.rank; }
  pid_t pid() const { return outcome_.pid; }
  bool is_local() const { return outcome_.host.empty(); }
  bool is_alive() const { return outcome_.state == RankState::running && (outcome_.pid > 0 || !is_local()); }

  /// Halted by a signal, which no launcher did.
  bool is_stopped() const;

  /// On its way out. Of a rank on another host this is not known.
  bool is_exiting() const;

  int process_fd() const { return child_.process.get(); }
  int output_fd() const { return child_.standard_output.get(); }  ///< -1 after the end of the stream
  int error_fd() const { return child_.standard_error.get(); }    ///< -1 after the end of the stream

  /// Takes what stands in the pipe, at most one buffer full. Returns false when there is nothing more to read now.
  bool read_output() { return read_once(child_.standard_output, output_); }
  bool read_error() { return read_once(child_.standard_error, error_); }

  /// Takes the end of the process, if it has come, with what it wrote last. Returns true if so.
  bool collect(int order);

  /// To the rank and all that it has started, as a terminal would. Does nothing after its end. REQUIRES: is_local().
  void signal_group(int signal_number) const;

  /// From now on its end is no news.
  void mark_told_to_end() { outcome_.told_to_end = true; }

  /// REQUIRES: no process writes to the streams any more. Takes the rest, and completes an unfinished line.
  void finish_output();

  const RankOutcome& outcome() const { return outcome_; }
  const StderrTail& tail() const { return tail_; }

  /// errno of a failed write to a copy, or 0.
  int copy_error() const;

 private:
  void end_helpers_of_failed() const;
  static bool read_once(UniqueFd& pipe, RankOutput& output);

  Child child_;
  StderrTail tail_;
  RankOutput output_;
  RankOutput error_;
  RankOutcome outcome_;
  bool stopped_ = false;  // as its agent says
};

}  // namespace lockstep::launcher
