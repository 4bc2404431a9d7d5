#include "rank_output.hpp"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <ctime>

namespace lockstep::launcher {

namespace {

/// Of this machine's clock: "2026-11-18 09:30:00.125 ".
std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm local{};
  ::localtime_r(&now.tv_sec, &local);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03} ", local.tm_year + 1900, local.tm_mon + 1,
                     local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec, now.tv_nsec / 1'000'000);
}

}  // namespace

std::string rank_prefix(int rank, bool coloured) {
  // Cyan, yellow, green, magenta, blue and their bright forms; red is left to errors.
  static constexpr std::array<int, 10> kColours = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  if (!coloured) return fmt::format("[{}] ", rank);
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", kColours[static_cast<std::size_t>(rank) % kColours.size()], rank);
}

RankOutput::RankOutput(int rank, const char* stream, Screen& screen, EventLog* events, StderrTail* tail)
    : rank_(rank),
      stream_(stream),
      has_live_line_(rank == 0 && screen.kind() == ScreenKind::terminal && events == nullptr),
      prefix_(rank_prefix(rank, screen.coloured())),
      screen_(screen),
      events_(events),
      tail_(tail) {}

void RankOutput::feed(std::string_view data) {
  if (copy_) copy(data);
  splitter_.feed(data, [this](std::string_view text, LineEnd end) { show(text, end); });
  if (has_live_line_) screen_.live(this, prefix_, splitter_.unfinished());
}

void RankOutput::finish() {
  splitter_.finish([this](std::string_view text, LineEnd end) { show(text, end); });
  copy_.reset();
}

void RankOutput::show(std::string_view text, LineEnd end) {
  if (end == LineEnd::carriage_return) {
    // A line that its writer draws over. A terminal shows its last state only; in a file each state is worth a line.
    const bool plain = screen_.kind() == ScreenKind::plain || events_ != nullptr;
    if (plain && !text.empty()) show_line(text);
    return;
  }
  if (has_live_line_) screen_.live(this, {}, {});  // it becomes this line
  show_line(text);
  if (tail_ != nullptr) tail_->add(text);
}

void RankOutput::show_line(std::string_view text) {
  if (events_ != nullptr) {
    events_->output(rank_, stream_, text);
  } else {
    screen_.line(screen_.timestamps() ? time_now() + prefix_ : prefix_, text);
  }
}

void RankOutput::copy(std::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::write(copy_.get(), data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      copy_error_ = errno;
      copy_.reset();
      return;
    }
    data.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep::launcher
