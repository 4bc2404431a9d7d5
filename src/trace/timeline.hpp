// The timeline: every operation of this rank as slices in a file that Perfetto (ui.perfetto.dev) and chrome://tracing
// show. docs/timeline.md describes the file.
//
// Recording appends to a buffer; a thread of its own writes it to the file several times a second. Off, recording costs
// one load.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "trace/short_text.hpp"
#include "trace/ticks.hpp"

namespace lockstep::trace {

/// Where the timeline of `rank` goes: "dir/trace.json" becomes "dir/trace.3.json".
std::string timeline_path(const std::string& path, int rank);

/// How a timeline is written.
struct TimelineOptions {
  /// Also draws a line across all tracks where a step begins, or an operation outside of steps.
  bool mark_cycles = false;
  /// The file is the path as given, without the rank: for one of the ranks only.
  bool exact_path = false;
};

/// All functions may be called from any thread.
class Timeline {
 public:
  /// Where an operation is shown. Empty: it is not.
  struct Ticket {
    std::uint32_t session = 0;  ///< counts the starts, from 1
    std::uint32_t lane = 0;
  };

  /// `room`: how many records wait for the writer at most. Operations that come when it is full are left out.
  explicit Timeline(std::size_t room = 1 << 16) : room_(room) {}
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Begins a new file, timeline_path(path, rank). Throws Error(invalid_argument) when it runs already and
  /// Error(system) when the file cannot be made.
  void start(const std::string& path, int rank, TimelineOptions options = {});

  /// Ends the file; what is under way ends in it now. Does nothing when it does not run.
  void stop();

  bool running() const { return running_.load(std::memory_order_relaxed); }

  // Operations under way when the timeline was started do not appear. The same holds for new ones while the file cannot
  // keep up; their number is in the file.
  Ticket submitted(Ticks now, const char* kind, std::string_view name, std::uint64_t id, std::uint64_t bytes,
                   std::uint32_t group_size) {
    if (!running()) return {};
    return begin(now, kind, name, id, bytes, group_size);
  }
  void matched(const Ticket& ticket, Ticks now, const char* kind) { add(ticket, Event::matched, now, kind, {}); }
  void note(const Ticket& ticket, Ticks now, std::string_view text) { add(ticket, Event::note, now, "", text); }
  void done(const Ticket& ticket, Ticks now) { add(ticket, Event::done, now, "", {}); }
  void failed(const Ticket& ticket, Ticks now, std::string_view why) { add(ticket, Event::failed, now, "", why); }

  /// Steps have a track of their own and follow one another.
  Ticket step_began(Ticks now, std::uint64_t number) {
    if (!running()) return {};
    return begin_step(now, number);
  }

 private:
  enum class Event : std::uint32_t { submitted, matched, note, done, failed, step };

  struct Record {
    Ticks at;
    const char* kind;
    std::uint64_t id;
    std::uint64_t bytes;
    std::uint32_t group_size;
    std::uint32_t lane;
    Event event;
    ShortName name;
  };

  Ticket begin(Ticks now, const char* kind, std::string_view name, std::uint64_t id, std::uint64_t bytes,
               std::uint32_t group_size);
  Ticket begin_step(Ticks now, std::uint64_t number);
  void add(const Ticket& ticket, Event event, Ticks now, const char* kind, std::string_view text) {
    if (ticket.session != 0 && running()) append(ticket, event, now, kind, text);
  }
  void append(const Ticket& ticket, Event event, Ticks now, const char* kind, std::string_view text);
  Record& push(Event event, Ticks now, const char* kind, std::uint32_t lane);  // REQUIRES mutex_
  std::uint32_t take_lane();                                                   // REQUIRES mutex_

  // The writer's.
  void run();
  void add_record(const Record& record, std::int64_t ns);
  void mark_cycle(std::int64_t ns);
  void open_slice(std::uint32_t lane, std::string_view name, std::int64_t ns, std::string_view arguments);
  void close_slices(std::uint32_t lane, std::size_t left, std::int64_t ns, std::string_view arguments);
  void add_event(char phase, std::uint32_t lane, std::string_view name, std::int64_t ns, std::string_view more);
  void name_lane(std::uint32_t lane);

  const std::size_t room_;
  std::atomic<bool> running_{false};
  std::atomic<pid_t> process_{0};  // that started it
  std::mutex starting_;            // held throughout start and stop

  std::mutex mutex_;
  std::condition_variable wake_;
  // Protected by mutex_.
  std::vector<Record> records_;
  std::vector<std::uint64_t> busy_;  // a bit per lane
  std::uint64_t left_out_ = 0;
  std::uint32_t session_ = 0;
  bool stopping_ = false;

  // The writer's, and of start and stop while it does not run.
  int rank_ = 0;
  bool mark_cycles_ = false;
  Fd file_;
  std::string text_;
  std::vector<std::size_t> depth_;  // open slices by lane
  ClockPoint last_;
  std::int64_t newest_ns_ = 0;
  std::thread thread_;
};

/// Makes one file of the timelines of several ranks, one process per rank, on the clock of the first one's host. A file
/// that was cut off (the rank was killed) counts as far as it goes. Throws Error(system) when a file cannot be read or
/// written, and Error(invalid_argument) when one is no timeline.
void merge_timelines(const std::vector<std::string>& paths, const std::string& out);

}  // namespace lockstep::trace
