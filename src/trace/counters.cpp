#include "trace/counters.hpp"

#include <algorithm>

namespace lockstep::trace {
namespace {

// The processor's counter may run a hair backwards between cores.
std::uint64_t length(Ticks ticks) { return static_cast<std::uint64_t>(std::max<Ticks>(0, ticks)); }

}  // namespace

Counters::Row& Counters::row(const char* kind) {
  for (Row& row : rows_) {
    const char* known = row.kind.load(std::memory_order_relaxed);
    if (known == kind) return row;
    if (known == nullptr) {
      row.kind.store(&row == &rows_.back() ? "other" : kind, std::memory_order_release);
      return row;
    }
  }
  return rows_.back();
}

void Counters::done(const char* kind, std::uint64_t bytes, Ticks waited, Ticks worked) {
  Row& of_kind = row(kind);
  add(of_kind.done, 1);
  add(of_kind.bytes, bytes);
  add(of_kind.waited, length(waited));
  add(of_kind.worked, length(worked));
}

void Counters::failed(const char* kind, Ticks waited) {
  Row& of_kind = row(kind);
  add(of_kind.failed, 1);
  add(of_kind.waited, length(waited));
}

std::vector<Counters::Sample> Counters::snapshot() const {
  const TickScale scale(made_, ClockPoint::now());
  auto nanoseconds = [&](const Count& ticks) {
    return static_cast<std::uint64_t>(scale.nanoseconds(static_cast<Ticks>(ticks.load(std::memory_order_relaxed))));
  };
  std::vector<Sample> samples;
  for (const Row& row : rows_) {
    const char* kind = row.kind.load(std::memory_order_acquire);
    if (kind == nullptr) break;
    samples.push_back({"operations_submitted", kind, row.submitted.load(std::memory_order_relaxed)});
    samples.push_back({"operations_done", kind, row.done.load(std::memory_order_relaxed)});
    samples.push_back({"operations_failed", kind, row.failed.load(std::memory_order_relaxed)});
    samples.push_back({"bytes_done", kind, row.bytes.load(std::memory_order_relaxed)});
    samples.push_back({"waited_ns", kind, nanoseconds(row.waited)});
    samples.push_back({"worked_ns", kind, nanoseconds(row.worked)});
  }
  samples.push_back({"steps", "", steps_.load(std::memory_order_relaxed)});
  samples.push_back({"stalls", "", stalls_.load(std::memory_order_relaxed)});
  samples.push_back({"notices", "", notices_.load(std::memory_order_relaxed)});
  return samples;
}

std::uint64_t Counters::value_of(const std::vector<Sample>& snapshot, const std::string& name,
                                 const std::string& kind) {
  const auto found = std::find_if(snapshot.begin(), snapshot.end(),
                                  [&](const Sample& sample) { return name == sample.name && kind == sample.kind; });
  return found != snapshot.end() ? found->value : 0;
}

}  // namespace lockstep::trace
