// The flight record: what this rank's last operations were and what became of them. Always on, in memory, and written
// for people when something fails.
//
// A ring of operations, not of events: each has a place that is changed as the operation goes on. So an operation that
// hangs keeps its place while thousands of others pass by.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "trace/short_text.hpp"
#include "trace/ticks.hpp"

namespace lockstep::trace {

/// Writing: one thread at a time (the engine's lock). Reading: any thread at any time, without a lock.
class FlightRecord {
 public:
  enum class State : std::uint32_t { pending, running, done, failed };

  struct Entry {
    std::uint64_t serial;  ///< in order of submission, from 1; 0: an empty place
    std::uint64_t id;      ///< of a step: its number
    std::uint64_t bytes;
    const char* kind;  ///< lives as long as the program
    Ticks submitted;
    Ticks matched;             ///< 0: not yet
    Ticks ended;               ///< 0: not yet
    std::uint32_t group_size;  ///< 0: a step
    State state;
    ShortName name;
    ShortText<136> note;  ///< whom it waits for, or why it failed
  };

  /// Where an operation's entry is. Empty: not recorded, and changes do nothing.
  struct Ticket {
    std::uint64_t serial = 0;
    std::size_t place = 0;
  };

  explicit FlightRecord(std::size_t operations = 512);

  Ticket submitted(Ticks now, const char* kind, std::string_view name, std::uint64_t id, std::uint64_t bytes,
                   std::uint32_t group_size);
  /// One without a name that has ended already.
  void completed(Ticks submitted, Ticks matched, Ticks ended, const char* kind, std::uint64_t id, std::uint64_t bytes,
                 std::uint32_t group_size);
  void matched(const Ticket& ticket, Ticks now);
  void note(const Ticket& ticket, std::string_view text);
  void done(const Ticket& ticket, Ticks matched, Ticks ended);
  void failed(const Ticket& ticket, Ticks now, std::string_view why);  ///< a note about waiting stays, and tells more

  /// Lets other processes of this user find the record, even while this one is stopped: see flight_reader.hpp. Without
  /// it, or if the system refuses, they do not.
  void publish() noexcept;

  /// In order of submission.
  std::vector<Entry> entries() const;

  /// For people: `why` it is written, then a line for each operation, newest last.
  std::string text(int rank, std::string_view why) const;

  /// Writes the text to "lockstep-flight-RANK.txt", whole or not at all, and returns its path. When it cannot, it says
  /// so on the log and returns nothing: it is called when something else has failed already.
  std::optional<std::string> write_file(const std::string& directory, int rank, std::string_view why) const noexcept;

 private:
  static constexpr std::size_t kWords = sizeof(Entry) / sizeof(std::uint64_t);

  // A sequence lock. The words are atomics written with release, so that a reader that sees one new word also sees that
  // the sequence is odd. (A fence would do, but the thread sanitizer does not know fences.)
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> sequence{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };
  static_assert(sizeof(Slot) == 256);

  friend class FlightReader;
  struct Change;
  std::optional<Entry> read(const Slot& slot) const;
  Slot* find(const Ticket& ticket);
  bool is_open(const Slot& slot) const;
  std::size_t next_place();

  std::size_t size_;
  std::unique_ptr<Slot[]> slots_;
  const ClockPoint made_ = ClockPoint::now();
  std::uint64_t serial_ = 0;
  std::size_t place_ = 0;
  Fd beacon_;
};

}  // namespace lockstep::trace
