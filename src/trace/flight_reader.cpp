#include "trace/flight_reader.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/fd.hpp"
#include "base/process_memory.hpp"

namespace lockstep::trace {
namespace {

// A beacon is written by somebody else: what it says is not believed beyond this.
constexpr std::uint64_t kMostSlots = 1 << 16;

bool read_memory(pid_t process, std::uint64_t address, void* to, std::size_t bytes) {
  return read_process(process, address, {static_cast<std::byte*>(to), bytes}) == Reach::done;
}

// Kinds are string constants of that process. Read byte by byte: the next page need not be there.
std::string read_kind(pid_t process, std::uint64_t address) {
  std::string text;
  for (char c = 0; text.size() < 32 && read_memory(process, address + text.size(), &c, 1) && c != 0;) text += c;
  return text;
}

std::optional<FlightBeacon> read_beacon(pid_t process, const char* descriptor) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size() - 1);
  const std::string_view text(target.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  if (text.find(std::string("/memfd:") + FlightBeacon::kName) != 0) return std::nullopt;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  FlightBeacon beacon{};
  if (!file || ::pread(file.get(), &beacon, sizeof beacon, 0) != sizeof beacon) return std::nullopt;
  if (beacon.magic != FlightBeacon::kMagic || beacon.process != process || beacon.count > kMostSlots)
    return std::nullopt;
  return beacon;
}

std::optional<FlightBeacon> newest_beacon(pid_t process) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(fmt::format("/proc/{}/fd", process).c_str()), ::closedir);
  std::optional<FlightBeacon> newest;
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const auto beacon = read_beacon(process, entry->d_name);
    if (beacon && (!newest || beacon->made.steady_ns > newest->made.steady_ns)) newest = beacon;
  }
  return newest;
}

}  // namespace

std::optional<std::vector<SeenOperation>> FlightReader::read(pid_t process) {
  using Entry = FlightRecord::Entry;
  struct Slot {
    std::uint64_t sequence;
    std::array<std::uint64_t, FlightRecord::kWords> words;
  };
  static_assert(sizeof(Slot) == sizeof(FlightRecord::Slot));

  const auto beacon = newest_beacon(process);
  if (!beacon) return std::nullopt;
  // Twice: what changed in between is just being written, and left out.
  std::vector<Slot> slots(beacon->count);
  std::vector<Slot> again(beacon->count);
  const std::size_t bytes = slots.size() * sizeof(Slot);
  if (!read_memory(process, beacon->slots, slots.data(), bytes)) return std::nullopt;
  if (!read_memory(process, beacon->slots, again.data(), bytes)) return std::nullopt;

  std::vector<Entry> entries;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto entry = std::bit_cast<Entry>(slots[i].words);
    const bool whole = slots[i].sequence % 2 == 0 && slots[i].sequence == again[i].sequence;
    if (whole && entry.serial != 0) entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.serial < b.serial; });

  const ClockPoint now = ClockPoint::now();
  const TickScale scale(beacon->made, now);
  std::vector<SeenOperation> result;
  for (const Entry& entry : entries) {
    result.push_back({.kind = read_kind(process, reinterpret_cast<std::uint64_t>(entry.kind)),
                      .name = std::string(entry.name.view()),
                      .note = std::string(entry.note.view()),
                      .state = entry.state,
                      .is_step = entry.group_size == 0,
                      .seconds = static_cast<double>(scale.nanoseconds(now.at - entry.submitted)) / 1e9});
  }
  return result;
}

}  // namespace lockstep::trace
