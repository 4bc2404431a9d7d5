#include "trace/flight_record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "trace/flight_reader.hpp"
#include "trace/write_whole.hpp"

namespace lockstep::trace {
namespace {

// A new operation passes over this many that have not ended; then it takes a place from one of them.
constexpr std::size_t kPassedOver = 64;

std::string time_text(std::int64_t ns) {
  const double value = static_cast<double>(ns);
  if (ns < 1'000'000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 1'000'000'000) return fmt::format("{:.1f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

bool is_step(const FlightRecord::Entry& entry) { return entry.group_size == 0; }

std::string state_text(const FlightRecord::Entry& entry, Ticks now, const TickScale& scale) {
  using State = FlightRecord::State;
  auto between = [&](Ticks from, Ticks to) {
    return time_text(std::max<std::int64_t>(0, scale.nanoseconds(to - from)));
  };
  const std::string_view note = entry.note.view();
  switch (entry.state) {
    case State::pending:
      return fmt::format("pending {}, {}", between(entry.submitted, now),
                         note.empty() ? "not all ranks have submitted it" : note);
    case State::running:
      if (is_step(entry)) return fmt::format("running {}", between(entry.submitted, now));
      return fmt::format("running {}, waited {}{}{}", between(entry.matched, now),
                         between(entry.submitted, entry.matched), note.empty() ? "" : ", ", note);
    case State::done:
      if (is_step(entry)) return fmt::format("took {}", between(entry.submitted, entry.ended));
      return fmt::format("done, waited {}, worked {}", between(entry.submitted, entry.matched),
                         between(entry.matched, entry.ended));
    case State::failed:
      return fmt::format("FAILED after {}{}{}", between(entry.submitted, entry.ended), note.empty() ? "" : ": ", note);
  }
  return "";
}

}  // namespace

// Changes words of a slot while the sequence is odd.
struct FlightRecord::Change {
  explicit Change(Slot& changed) : slot(changed), sequence(slot.sequence.load(std::memory_order_relaxed)) {
    slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  }
  ~Change() { slot.sequence.store(sequence + 2, std::memory_order_release); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  /// `offset` of the value in Entry; whole words are stored.
  void set(std::size_t offset, const void* value, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(value) + done, std::min(sizeof word, bytes - done));
      slot.words[(offset + done) / sizeof word].store(word, std::memory_order_release);
    }
  }
  void set_ticks(std::size_t offset, Ticks value) { set(offset, &value, sizeof value); }
  void set_note(std::string_view text) {
    ShortText<136> note{};
    note.assign(text);
    set(offsetof(Entry, note), &note, text.empty() ? sizeof(std::uint64_t) : sizeof note);
  }
  // The state shares its word with the size of the group.
  void set_state(State state) {
    constexpr std::size_t index = offsetof(Entry, group_size) / sizeof(std::uint64_t);
    static_assert(offsetof(Entry, group_size) % 8 == 0 && offsetof(Entry, state) == offsetof(Entry, group_size) + 4);
    const std::array<std::uint32_t, 2> pair = {
        std::bit_cast<std::array<std::uint32_t, 2>>(slot.words[index].load(std::memory_order_relaxed))[0],
        static_cast<std::uint32_t>(state)};
    slot.words[index].store(std::bit_cast<std::uint64_t>(pair), std::memory_order_release);
  }

  Slot& slot;
  const std::uint64_t sequence;
};

FlightRecord::FlightRecord(std::size_t operations) : size_(operations), slots_(std::make_unique<Slot[]>(operations)) {}

FlightRecord::Slot* FlightRecord::find(const Ticket& ticket) {
  Slot& slot = slots_[ticket.place];
  const bool same =
      ticket.serial != 0 && slot.words[offsetof(Entry, serial) / 8].load(std::memory_order_relaxed) == ticket.serial;
  return same ? &slot : nullptr;
}

bool FlightRecord::is_open(const Slot& slot) const {
  return slot.words[offsetof(Entry, serial) / 8].load(std::memory_order_relaxed) != 0 &&
         slot.words[offsetof(Entry, ended) / 8].load(std::memory_order_relaxed) == 0;
}

std::size_t FlightRecord::next_place() {
  for (std::size_t passed = 0; passed < std::min(kPassedOver, size_) && is_open(slots_[place_]); ++passed)
    place_ = (place_ + 1) % size_;
  const std::size_t place = place_;
  place_ = (place_ + 1) % size_;
  return place;
}

FlightRecord::Ticket FlightRecord::submitted(Ticks now, const char* kind, std::string_view name, std::uint64_t id,
                                             std::uint64_t bytes, std::uint32_t group_size) {
  const Ticket ticket{.serial = ++serial_, .place = next_place()};
  Entry entry;  // the note's text is left as it is: only its first word is stored, and says that it is empty
  entry.serial = ticket.serial;
  entry.id = id;
  entry.bytes = bytes;
  entry.kind = kind;
  entry.submitted = now;
  entry.matched = 0;
  entry.ended = 0;
  entry.group_size = group_size;
  entry.state = State::pending;
  entry.name.assign_end(name);
  Change change(slots_[ticket.place]);
  const std::size_t name_bytes = std::min(sizeof(ShortName), name.size() + 1);
  change.set(0, &entry, offsetof(Entry, name) + name_bytes);
  change.set_note({});
  return ticket;
}

void FlightRecord::completed(Ticks submitted, Ticks matched, Ticks ended, const char* kind, std::uint64_t id,
                             std::uint64_t bytes, std::uint32_t group_size) {
  Entry entry;  // of name and note, only what says that they are empty is stored
  entry.serial = ++serial_;
  entry.id = id;
  entry.bytes = bytes;
  entry.kind = kind;
  entry.submitted = submitted;
  entry.matched = matched;
  entry.ended = ended;
  entry.group_size = group_size;
  entry.state = State::done;
  entry.name.clear();
  Change change(slots_[next_place()]);
  change.set(0, &entry, offsetof(Entry, name) + 1);
  change.set_note({});
}

void FlightRecord::matched(const Ticket& ticket, Ticks now) {
  Slot* slot = find(ticket);
  if (slot == nullptr) return;
  Change change(*slot);
  change.set_ticks(offsetof(Entry, matched), now);
  change.set_state(State::running);
  change.set_note({});
}

void FlightRecord::note(const Ticket& ticket, std::string_view text) {
  Slot* slot = find(ticket);
  if (slot == nullptr) return;
  Change(*slot).set_note(text);
}

void FlightRecord::done(const Ticket& ticket, Ticks matched, Ticks ended) {
  Slot* slot = find(ticket);
  if (slot == nullptr) return;
  Change change(*slot);
  change.set_ticks(offsetof(Entry, matched), matched);
  change.set_ticks(offsetof(Entry, ended), ended);
  change.set_state(State::done);
  change.set_note({});
}

void FlightRecord::failed(const Ticket& ticket, Ticks now, std::string_view why) {
  Slot* slot = find(ticket);
  if (slot == nullptr) return;
  const bool noted = read(*slot).value_or(Entry{}).note.bytes[0] != 0;
  Change change(*slot);
  change.set_ticks(offsetof(Entry, ended), now);
  change.set_state(State::failed);
  if (!noted) change.set_note(why);
}

void FlightRecord::publish() noexcept {
  const FlightBeacon beacon{.magic = FlightBeacon::kMagic,
                            .slots = reinterpret_cast<std::uint64_t>(slots_.get()),
                            .count = size_,
                            .made = made_,
                            .process = ::getpid()};
  Fd file(::memfd_create(FlightBeacon::kName, MFD_CLOEXEC));
  if (file && ::pwrite(file.get(), &beacon, sizeof beacon, 0) == sizeof beacon) beacon_ = std::move(file);
}

// --- reading

std::optional<FlightRecord::Entry> FlightRecord::read(const Slot& slot) const {
  // The writer is inside a slot for nanoseconds. Should it be interrupted just there, the entry is left out.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::uint64_t before = slot.sequence.load(std::memory_order_acquire);
    std::array<std::uint64_t, kWords> words;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (before % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == before) return std::bit_cast<Entry>(words);
  }
  return std::nullopt;
}

std::vector<FlightRecord::Entry> FlightRecord::entries() const {
  std::vector<Entry> result;
  for (std::size_t i = 0; i < size_; ++i) {
    const auto entry = read(slots_[i]);
    if (entry && entry->serial != 0) result.push_back(*entry);
  }
  std::sort(result.begin(), result.end(), [](const Entry& a, const Entry& b) { return a.serial < b.serial; });
  return result;
}

std::string FlightRecord::text(int rank, std::string_view why) const {
  const auto all = entries();
  const ClockPoint now = ClockPoint::now();
  const TickScale scale(made_, now);
  std::string text = fmt::format("Flight record of rank {} (pid {}): its last {} operations and steps, newest last.\n",
                                 rank, ::getpid(), all.size());
  if (!why.empty()) text += fmt::format("Written because: {}\n", why);
  text += fmt::format("\n{:>12}  {:<56} {:>9} {:>6}  {}\n", "submitted", "operation", "size", "ranks", "state");
  for (const Entry& entry : all) {
    const double ago = static_cast<double>(scale.nanoseconds(now.at - entry.submitted)) / 1e9;
    const std::string_view name = entry.name.view();
    const std::string what = is_step(entry) ? fmt::format("{} {}", entry.kind, entry.id)
                             : name.empty() ? fmt::format("{} (no name)", entry.kind)
                                            : fmt::format("{} '{}'", entry.kind, name);
    text +=
        fmt::format("{:>10.6f} s  {:<56} {:>9} {:>6}  {}\n", -ago, what, is_step(entry) ? "" : bytes_text(entry.bytes),
                    is_step(entry) ? "" : fmt::to_string(entry.group_size), state_text(entry, now.at, scale));
  }
  return text;
}

std::optional<std::string> FlightRecord::write_file(const std::string& directory, int rank,
                                                    std::string_view why) const noexcept {
  std::string draft;
  try {
    const std::string path = fmt::format("{}/lockstep-flight-{}.txt", directory, rank);
    draft = fmt::format("{}.{}", path, ::getpid());
    ::unlink(draft.c_str());
    const Fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file) throw_errno("create " + draft);
    if (!write_whole(file.get(), text(rank, why))) throw_errno("write " + draft);
    if (std::rename(draft.c_str(), path.c_str()) != 0) throw_errno("rename " + draft);
    return path;
  } catch (const std::exception& error) {
    ::unlink(draft.c_str());
    log::warn(rank, fmt::format("the flight record was not written: {}", error.what()));
    return std::nullopt;
  }
}

}  // namespace lockstep::trace
