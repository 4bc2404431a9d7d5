#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "errors.hpp"
#include "trace/timeline.hpp"

namespace lockstep::launcher {

namespace {

constexpr const char* kTimelineUsage = "lockstep timeline merge OUT FILE...";
constexpr const char* kTimelineText =
    R"(Puts the timelines that ranks wrote (LOCKSTEP_TIMELINE=trace.json gives trace.0.json, trace.1.json, ...) into one
file OUT, which Perfetto (ui.perfetto.dev) and chrome://tracing show with one process per rank. A file that was cut
off, because its rank was killed, counts as far as it goes. For example:

    lockstep timeline merge all.json trace.*.json)";

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code missing;
  return std::filesystem::equivalent(one, other, missing);
}

int merge(const std::string& out, const std::vector<std::string>& files) {
  const auto same = std::find_if(files.begin(), files.end(), [&](const auto& file) { return is_same_file(out, file); });
  if (same != files.end()) {
    throw UsageError(fmt::format("{} would be overwritten. The file to write comes first: {}", *same, kTimelineUsage));
  }
  trace::merge_timelines(files, out);
  return 0;
}

}  // namespace

CommandText describe_timeline() {
  return {.name = "timeline",
          .usage = kTimelineUsage,
          .description = kTimelineText,
          .options = {{.names = {"-h", "--help"}, .value = "", .description = "Print this help message and exit"}}};
}

int run_timeline(const std::vector<std::string>& arguments) {
  const bool asks_for_help = std::any_of(arguments.begin(), arguments.end(),
                                         [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (asks_for_help) {
    const std::string text = fmt::format("Usage: {}\n\n{}\n", kTimelineUsage, kTimelineText);
    return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
  }
  if (arguments.size() < 3 || arguments[0] != "merge") {
    throw UsageError(fmt::format("lockstep timeline merges files: {}", kTimelineUsage));
  }
  return merge(arguments[1], {arguments.begin() + 2, arguments.end()});
}

}  // namespace lockstep::launcher
