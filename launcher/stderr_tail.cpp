#include "stderr_tail.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace lockstep::launcher {

namespace {

constexpr std::size_t kLines = 30;
constexpr std::size_t kHeadOfReport = 200;  // the first lines of a traceback that are never cut
constexpr std::size_t kLongestReport = 400;
constexpr std::size_t kLongestLine = 4096;

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool starts_report(std::string_view line) {
  return starts_with(line, "Traceback (most recent call last):") || starts_with(line, "Fatal Python error:") ||
         starts_with(line, "  + Exception Group Traceback (most recent call last):");
}

bool announces_chained_traceback(std::string_view line) {
  return starts_with(line, "During handling of the above exception, another exception occurred:") ||
         starts_with(line, "The above exception was the direct cause of the following exception:");
}

/// "... Noticed by rank 0 while waiting in barrier 'epoch'. ..."
std::string operation_of(std::string_view loss) {
  static constexpr std::string_view kWaiting = " while waiting in ";
  const std::size_t at = loss.find(kWaiting);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = loss.substr(at + kWaiting.size());
  return std::string(rest.substr(0, rest.find(". ")));
}

bool is_stall_warning(std::string_view line) {
  return starts_with(line, "lockstep warning: ") && line.find(" has waited ") != std::string_view::npos;
}

}  // namespace

void StderrTail::add(std::string_view line) {
  note_lost_rank(line);
  if (is_stall_warning(line)) ++stalls_;
  if (starts_report(line)) begin_report(announces_chained_traceback(last_sentence_));
  lines_.emplace_back(line.substr(0, kLongestLine));
  if (in_report_) {
    if (report_complete_) ++lines_after_;
    const bool indented = line.empty() || line.front() == ' ' || line.front() == '\t';
    if (!indented && !starts_report(line)) report_complete_ = true;
  }
  if (!line.empty()) last_sentence_ = lines_.back();
  trim();
}

void StderrTail::begin_report(bool chained) {
  if (!(chained && in_report_)) {
    lines_.clear();
    left_out_ = 0;
  }
  in_report_ = true;
  report_complete_ = false;
  lines_after_ = 0;
}

/// In the engine's words: "lost rank 2", or "rank 2 aborted the job", which it does when it ends with an exception.
void StderrTail::note_lost_rank(std::string_view line) {
  static constexpr std::string_view kRank = "rank ";
  static constexpr std::string_view kLost = "lost ";
  for (std::size_t at = line.find(kRank); at != std::string_view::npos; at = line.find(kRank, at + 1)) {
    const char* const begin = line.data() + at + kRank.size();
    const char* const end = line.data() + line.size();
    int rank = 0;
    const auto number = std::from_chars(begin, end, rank);
    if (number.ec != std::errc()) continue;
    const std::string_view after(number.ptr, static_cast<std::size_t>(end - number.ptr));
    const bool lost = at >= kLost.size() && line.substr(at - kLost.size(), kLost.size()) == kLost;
    if (lost || starts_with(after, " aborted the job")) lost_ranks_.insert(rank);
    if (lost && noticed_in_.empty()) noticed_in_ = operation_of(after);
  }
}

void StderrTail::trim() {
  // A traceback that much was written after was survived, and explains nothing.
  if (in_report_ && lines_after_ > kLines) {
    in_report_ = false;
    left_out_ = 0;
  }
  if (in_report_) {
    if (lines_.size() > kLongestReport) {
      lines_.erase(lines_.begin() + kHeadOfReport);
      ++left_out_;
    }
  } else {
    while (lines_.size() > kLines) lines_.pop_front();
  }
}

std::vector<std::string> StderrTail::lines() const {
  std::vector<std::string> result(lines_.begin(), lines_.end());
  if (left_out_ > 0) {
    result.insert(result.begin() + kHeadOfReport, fmt::format("... {} lines left out ...", left_out_));
  }
  while (!result.empty() && result.back().empty()) result.pop_back();
  return result;
}

}  // namespace lockstep::launcher
