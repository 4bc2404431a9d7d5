// Counters: how many operations, bytes and how much time, since the engine started.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/ticks.hpp"

namespace lockstep::trace {

/// Counting: one thread at a time (the engine's lock), so that it costs no locked instruction. Reading: any thread;
/// each value is right, but not all are of the same moment.
class Counters {
 public:
  struct Sample {
    const char* name;  ///< e.g. "operations_done"; times end in "_ns"
    const char* kind;  ///< e.g. "all-reduce"; empty: does not belong to a kind
    std::uint64_t value;
  };

  /// The address of `kind` stands for it; it lives as long as the program.
  void submitted(const char* kind) { add(row(kind).submitted, 1); }
  void done(const char* kind, std::uint64_t bytes, Ticks waited, Ticks worked);
  void failed(const char* kind, Ticks waited);
  void step_ended() { add(steps_, 1); }
  void stalled() { add(stalls_, 1); }
  void notices_taken(std::uint64_t number) { add(notices_, number); }

  /// Kinds in order of their first use, then what belongs to none.
  std::vector<Sample> snapshot() const;

  /// Of a snapshot; 0 when it has no such sample.
  static std::uint64_t value_of(const std::vector<Sample>& snapshot, const std::string& name,
                                const std::string& kind = "");

 private:
  using Count = std::atomic<std::uint64_t>;

  struct Row {
    std::atomic<const char*> kind{nullptr};
    Count submitted{0};
    Count done{0};
    Count failed{0};
    Count bytes{0};
    Count waited{0};  // ticks
    Count worked{0};  // ticks
  };

  static void add(Count& count, std::uint64_t number) {
    count.store(count.load(std::memory_order_relaxed) + number, std::memory_order_relaxed);
  }
  Row& row(const char* kind);

  const ClockPoint made_ = ClockPoint::now();
  std::array<Row, 32> rows_;  // the last one for all kinds beyond
  Count steps_{0};
  Count stalls_{0};
  Count notices_{0};
};

}  // namespace lockstep::trace
