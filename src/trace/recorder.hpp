// What the engine calls: one line where an operation is submitted, matched and ended. It reads the clock once and tells
// the flight record, the timeline and the counters.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "trace/counters.hpp"
#include "trace/flight_record.hpp"
#include "trace/ticks.hpp"
#include "trace/timeline.hpp"

namespace lockstep::trace {

/// Lives in an operation and remembers what the recorder knows of it. One that was never submitted is ignored.
struct Span {
  const char* kind = nullptr;
  std::uint64_t bytes = 0;
  Ticks submitted = 0;
  Ticks matched = 0;
  FlightRecord::Ticket flight = {};
  Timeline::Ticket timeline = {};
};

/// Recording: one thread at a time (the engine's lock). The three parts may be read, and the timeline started and
/// stopped, from any thread.
class Recorder {
 public:
  /// `kind` lives as long as the program; the name is copied, and cut at its front when it is long.
  void submitted(Span& span, const char* kind, std::string_view name, std::uint64_t id, std::uint64_t bytes,
                 std::size_t group_size);

  /// All ranks have submitted it.
  void matched(Span& span);

  /// `matched` is for an operation that was not said to be. 0: all the time went into waiting.
  void done(Span& span, Ticks matched = 0);

  /// Instead of the three above, for an operation without a name that nobody could ask about meanwhile: costs less.
  void completed(const char* kind, std::uint64_t id, std::uint64_t bytes, std::size_t group_size, Ticks submitted,
                 Ticks matched);

  void failed(Span& span, std::string_view why);

  /// For reports of stalls, and before `failed` when ranks were missing.
  void waits_for(Span& span, std::span<const int> ranks);

  /// A step that has not ended when the next one begins counts as failed.
  void step_began(std::uint64_t number);
  void step_ended();

  FlightRecord& flight_record() { return flight_record_; }
  Timeline& timeline() { return timeline_; }
  Counters& counters() { return counters_; }

 private:
  FlightRecord flight_record_;
  Timeline timeline_;
  Counters counters_;
  Span step_;
};

}  // namespace lockstep::trace
