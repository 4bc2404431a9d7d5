#include "trace/recorder.hpp"

#include <fmt/format.h>

#include <string>

namespace lockstep::trace {

void Recorder::submitted(Span& span, const char* kind, std::string_view name, std::uint64_t id, std::uint64_t bytes,
                         std::size_t group_size) {
  const auto ranks = static_cast<std::uint32_t>(group_size);
  const Ticks now = ticks();
  span.kind = kind;
  span.bytes = bytes;
  span.submitted = now;
  span.flight = flight_record_.submitted(now, kind, name, id, bytes, ranks);
  span.timeline = timeline_.submitted(now, kind, name, id, bytes, ranks);
  counters_.submitted(kind);
}

void Recorder::matched(Span& span) {
  if (span.kind == nullptr || span.matched != 0) return;
  span.matched = ticks();
  flight_record_.matched(span.flight, span.matched);
  timeline_.matched(span.timeline, span.matched, span.kind);
}

void Recorder::done(Span& span, Ticks matched) {
  if (span.kind == nullptr) return;
  const Ticks now = ticks();
  if (span.matched == 0) {
    span.matched = matched != 0 ? matched : now;
    timeline_.matched(span.timeline, span.matched, span.kind);
  }
  flight_record_.done(span.flight, span.matched, now);
  timeline_.done(span.timeline, now);
  counters_.done(span.kind, span.bytes, span.matched - span.submitted, now - span.matched);
  span = {};
}

void Recorder::completed(const char* kind, std::uint64_t id, std::uint64_t bytes, std::size_t group_size,
                         Ticks submitted, Ticks matched) {
  const auto ranks = static_cast<std::uint32_t>(group_size);
  const Ticks now = ticks();
  if (matched == 0) matched = now;
  flight_record_.completed(submitted, matched, now, kind, id, bytes, ranks);
  const Timeline::Ticket ticket = timeline_.submitted(submitted, kind, {}, id, bytes, ranks);
  timeline_.matched(ticket, matched, kind);
  timeline_.done(ticket, now);
  counters_.submitted(kind);
  counters_.done(kind, bytes, matched - submitted, now - matched);
}

void Recorder::failed(Span& span, std::string_view why) {
  if (span.kind == nullptr) return;
  const Ticks now = ticks();
  flight_record_.failed(span.flight, now, why);
  timeline_.failed(span.timeline, now, why);
  counters_.failed(span.kind, (span.matched != 0 ? span.matched : now) - span.submitted);
  span = {};
}

void Recorder::waits_for(Span& span, std::span<const int> ranks) {
  if (span.kind == nullptr || ranks.empty()) return;
  const std::string text = fmt::format("waiting for rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  flight_record_.note(span.flight, text);
  timeline_.note(span.timeline, ticks(), text);
}

void Recorder::step_began(std::uint64_t number) {
  const Ticks now = ticks();
  if (step_.kind != nullptr) {
    flight_record_.failed(step_.flight, now, "it was not ended");
    timeline_.failed(step_.timeline, now, "it was not ended");
  }
  step_.kind = "step";
  step_.submitted = now;
  step_.flight = flight_record_.submitted(now, step_.kind, {}, number, 0, 0);
  flight_record_.matched(step_.flight, now);
  step_.timeline = timeline_.step_began(now, number);
}

void Recorder::step_ended() {
  if (step_.kind == nullptr) return;
  const Ticks now = ticks();
  flight_record_.done(step_.flight, step_.submitted, now);
  timeline_.done(step_.timeline, now);
  counters_.step_ended();
  step_ = {};
}

}  // namespace lockstep::trace
