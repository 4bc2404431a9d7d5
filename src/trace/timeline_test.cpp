#include "trace/timeline.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "lockstep/error.hpp"
#include "trace/recorder.hpp"

namespace lockstep::trace {
namespace {

using nlohmann::json;

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// On each track slices begin and end like brackets, and time never runs backwards. Returns how many there were.
std::size_t expect_nested(const json& events) {
  std::map<std::pair<int, int>, int> depth;
  std::map<std::pair<int, int>, double> last;
  std::size_t slices = 0;
  for (const json& event : events) {
    const std::string phase = event.at("ph");
    if (phase != "B" && phase != "E") continue;
    const std::pair<int, int> track{event.at("pid"), event.at("tid")};
    const double at = event.at("ts");
    EXPECT_GE(at, last[track]);
    last[track] = at;
    depth[track] += phase == "B" ? 1 : -1;
    EXPECT_GE(depth[track], 0);
    if (phase == "B") ++slices;
  }
  for (const auto& [track, open] : depth) EXPECT_EQ(open, 0) << "track " << track.second;
  return slices;
}

json find(const json& events, const std::string& name) {
  const auto found =
      std::find_if(events.begin(), events.end(), [&](const json& event) { return event.value("name", "") == name; });
  return found != events.end() ? *found : json();
}

class TimelineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/timelineXXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/trace.json";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void record_operation(const std::string& name) {
    Span span;
    recorder_.submitted(span, "all-reduce", name, 7, 4096, 2);
    recorder_.matched(span);
    recorder_.done(span);
  }

  std::string directory_;
  std::string path_;
  Recorder recorder_;
};

TEST_F(TimelineTest, PathHasTheRankBeforeTheExtension) {
  EXPECT_EQ(timeline_path("dir.d/trace.json", 3), "dir.d/trace.3.json");
  EXPECT_EQ(timeline_path("dir.d/trace", 3), "dir.d/trace.3");
}

TEST_F(TimelineTest, ShowsThePhasesOfAnOperationAndItsStep) {
  recorder_.timeline().start(path_, 3, {.mark_cycles = true});
  recorder_.step_began(12);
  record_operation("layer1.weight");
  recorder_.step_ended();
  recorder_.timeline().stop();

  const json events = json::parse(read(directory_ + "/trace.3.json"));
  EXPECT_EQ(expect_nested(events), 4U);
  std::vector<std::string> order;
  for (const json& event : events) {
    if (event["ph"] != "M") order.push_back(event["ph"].get<std::string>() + " " + event.value("name", ""));
    EXPECT_EQ(event["pid"], 3);
  }
  EXPECT_EQ(order, (std::vector<std::string>{"i CYCLE_START", "B step 12", "B layer1.weight", "B NEGOTIATE_ALLREDUCE",
                                             "E ", "B ALLREDUCE", "E ", "E ", "E "}));
  EXPECT_EQ(find(events, "layer1.weight")["args"]["bytes"], 4096);
  EXPECT_EQ(find(events, "process_name")["args"]["name"], "rank 3");
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const json& event) { return event["ph"] == "M"; }), 7);
}

TEST_F(TimelineTest, OutsideOfStepsAnOperationIsACycle) {
  recorder_.timeline().start(path_, 0, {.mark_cycles = true, .exact_path = true});
  record_operation("lonely");
  recorder_.timeline().stop();
  EXPECT_FALSE(std::filesystem::exists(timeline_path(path_, 0)));
  EXPECT_EQ(find(json::parse(read(path_)), "CYCLE_START")["ph"], "i");
}

TEST_F(TimelineTest, OperationsThatOverlapGetLanesOfTheirOwn) {
  recorder_.timeline().start(path_, 0);
  std::vector<Span> spans(100);
  for (std::size_t i = 0; i < spans.size(); ++i)
    recorder_.submitted(spans[i], "all-reduce", std::to_string(i), i, 4, 2);
  for (std::size_t i = 0; i < spans.size(); ++i) recorder_.matched(spans[i * 37 % spans.size()]);
  for (std::size_t i = 0; i < spans.size(); ++i) recorder_.done(spans[i * 73 % spans.size()]);
  record_operation("afterwards");
  recorder_.timeline().stop();

  const json events = json::parse(read(timeline_path(path_, 0)));
  EXPECT_EQ(expect_nested(events), 303U);
  EXPECT_EQ(find(events, "99")["tid"], 100);
  EXPECT_EQ(find(events, "afterwards")["tid"], 1) << "the first free lane";
}

TEST_F(TimelineTest, ShowsFailuresAndWhomItWaitsFor) {
  recorder_.timeline().start(path_, 0);
  Span span;
  recorder_.submitted(span, "reduce-scatter", "", 1, 4, 3);
  recorder_.waits_for(span, std::vector<int>{1, 2});
  recorder_.failed(span, "lost rank 2");
  recorder_.timeline().stop();
  const json events = json::parse(read(timeline_path(path_, 0)));
  EXPECT_EQ(expect_nested(events), 2U);
  EXPECT_EQ(find(events, "waiting for ranks 1, 2")["ph"], "i");
  EXPECT_EQ(find(events, "NEGOTIATE_REDUCESCATTER")["ph"], "B");
  EXPECT_EQ(events.back()["args"]["failed"], "lost rank 2");
}

TEST_F(TimelineTest, CanBeStoppedAndStartedAgainInTheMiddleOfOperations) {
  Span before, across;
  recorder_.submitted(before, "all-reduce", "before", 1, 4, 2);
  recorder_.timeline().start(path_, 0);
  EXPECT_THROW(recorder_.timeline().start(path_, 0), Error);
  recorder_.submitted(across, "all-reduce", "across", 2, 4, 2);
  recorder_.matched(before);
  recorder_.timeline().stop();
  recorder_.timeline().stop();
  const json first = json::parse(read(timeline_path(path_, 0)));
  EXPECT_EQ(expect_nested(first), 2U) << "what is under way is closed";

  recorder_.matched(across);
  recorder_.timeline().start(path_, 1);
  record_operation("new");
  recorder_.done(across);
  recorder_.done(before);
  recorder_.timeline().stop();
  const json second = json::parse(read(timeline_path(path_, 1)));
  EXPECT_EQ(expect_nested(second), 3U);
  EXPECT_TRUE(find(second, "across").is_null());
}

TEST_F(TimelineTest, AnyNameMakesValidJson) {
  const std::vector<std::string> names = {"a\"b\\c\n\t\x01", "\xff\xfe", "{}%s", "\u00fcber", std::string(200, '\xc3')};
  recorder_.timeline().start(path_, 0);
  for (const std::string& name : names) record_operation(name);
  recorder_.timeline().stop();
  const json events = json::parse(read(timeline_path(path_, 0)));
  EXPECT_EQ(expect_nested(events), 15U);
  EXPECT_FALSE(find(events, names[0]).is_null());
  EXPECT_FALSE(find(events, names[3]).is_null());
}

TEST_F(TimelineTest, AFileThatCannotBeMadeIsAnError) {
  EXPECT_THROW(recorder_.timeline().start(directory_ + "/no/such/place.json", 0), Error);
  EXPECT_FALSE(recorder_.timeline().running());
  recorder_.timeline().start(path_, 0);
}

TEST_F(TimelineTest, AFullDiskEndsTheTimelineAndNothingElse) {
  std::filesystem::create_symlink("/dev/full", timeline_path(path_, 0));
  recorder_.timeline().start(path_, 0);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (recorder_.timeline().running() && std::chrono::steady_clock::now() < limit) {
    record_operation("x");
    std::this_thread::yield();
  }
  EXPECT_FALSE(recorder_.timeline().running());
  recorder_.timeline().stop();
  recorder_.timeline().start(path_, 1);
  EXPECT_TRUE(recorder_.timeline().running());
}

TEST_F(TimelineTest, WhatWasRecordedIsInTheFileSoonWithoutStop) {
  recorder_.timeline().start(path_, 0);
  Span span;
  recorder_.submitted(span, "all-reduce", "hangs", 1, 4, 2);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::string text;
  while (text.find("NEGOTIATE") == std::string::npos && std::chrono::steady_clock::now() < limit)
    text = read(timeline_path(path_, 0));
  // As a kill would leave it.
  EXPECT_FALSE(find(json::parse(text.substr(0, text.rfind('\n')) + "]"), "hangs").is_null());
}

TEST_F(TimelineTest, ThreadsRecordWhileAnotherStartsAndStops) {
  std::atomic<bool> stop{false};
  std::thread switcher([&] {
    for (int i = 0; i < 8; ++i) {
      recorder_.timeline().start(path_, i);
      std::this_thread::yield();
      recorder_.timeline().stop();
    }
    stop = true;
  });
  while (!stop) {
    record_operation("x");
    std::this_thread::yield();
  }
  switcher.join();
  for (int i = 0; i < 8; ++i) expect_nested(json::parse(read(timeline_path(path_, i))));
}

TEST_F(TimelineTest, AForkedChildLeavesTheFileToItsParent) {
  recorder_.timeline().start(path_, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // a child that waits for a thread it does not have must not hang the test
    recorder_.timeline().stop();
    ::_exit(0);
  }
  record_operation("x");
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  recorder_.timeline().stop();
  EXPECT_EQ(expect_nested(json::parse(read(timeline_path(path_, 0)))), 3U);
}

// The file is a pipe that nobody reads: it is full after 64 KB.
TEST_F(TimelineTest, WhenTheFileIsSlowWholeOperationsAreLeftOut) {
  const std::string pipe = timeline_path(path_, 0);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Fd reading(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::fcntl(reading.get(), F_SETFL, 0), 0);
  Timeline timeline(3000);
  timeline.start(path_, 0);
  for (int i = 0; i < 10'000; ++i) {
    const auto ticket = timeline.submitted(ticks(), "all-reduce", "x", 1, 4, 2);
    timeline.matched(ticket, ticks(), "all-reduce");
    timeline.done(ticket, ticks());
  }
  std::string text;
  std::thread reader([&] {
    std::vector<char> piece(1 << 16);
    for (ssize_t bytes; (bytes = ::read(reading.get(), piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<std::size_t>(bytes));
    }
  });
  timeline.stop();
  reader.join();
  const json events = json::parse(text);
  std::size_t left_out = 0;
  for (const json& event : events) {
    if (event.value("name", "") == "LEFT_OUT") left_out += event["args"]["operations"].get<std::size_t>();
  }
  EXPECT_GT(left_out, 0U);
  EXPECT_EQ(expect_nested(events) / 3 + left_out, 10'000U);
}

// --- merging

std::string part(int rank, const std::string& boot, long offset, double ts) {
  return "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + std::to_string(rank) +
         ",\"args\":{\"name\":\"rank\"}}\n" +
         ",{\"name\":\"lockstep_clock\",\"ph\":\"M\",\"pid\":" + std::to_string(rank) + ",\"args\":{\"boot_id\":\"" +
         boot + "\",\"system_minus_steady_ns\":" + std::to_string(offset) +
         "}}\n,{\"ph\":\"B\",\"pid\":" + std::to_string(rank) + ",\"tid\":1,\"ts\":" + std::to_string(ts) +
         ",\"name\":\"slice" + std::to_string(rank) + "\"}\n";
}

TEST_F(TimelineTest, MergesRanksOnOneClock) {
  const std::vector<std::string> parts = {directory_ + "/0", directory_ + "/1", directory_ + "/2"};
  write(parts[0], part(0, "host a", 5'000'000, 100) + "]\n");
  write(parts[1],
        part(1, "host a", 5'000'900, 101) + ",{\"ph\":\"E\",\"pid\":1,\"ti");  // killed in the middle of a line
  write(parts[2], part(2, "host b", 2'000'000, 3100));
  merge_timelines(parts, directory_ + "/merged.json");
  const json events = json::parse(read(directory_ + "/merged.json"));
  EXPECT_EQ(events.size(), 9U);
  EXPECT_EQ(find(events, "slice0")["ts"], 100.0);
  EXPECT_EQ(find(events, "slice1")["ts"], 101.0) << "one host has one steady clock";
  EXPECT_EQ(find(events, "slice2")["ts"], 100.0);
  EXPECT_EQ(find(events, "slice2")["pid"], 2);
}

TEST_F(TimelineTest, MergesWhatItRecorded) {
  std::vector<std::string> paths;
  for (int rank = 0; rank < 2; ++rank) {
    recorder_.timeline().start(path_, rank);
    record_operation("x");
    recorder_.timeline().stop();
    paths.push_back(timeline_path(path_, rank));
  }
  paths.push_back(paths.front());
  merge_timelines(paths, paths.front());  // the result may take the place of a part
  EXPECT_EQ(expect_nested(json::parse(read(paths.front()))), 9U);
}

TEST_F(TimelineTest, MergeRefusesWhatIsNoTimeline) {
  write(path_, "{}\n");
  EXPECT_THROW(merge_timelines({path_}, directory_ + "/out"), Error);
  EXPECT_THROW(merge_timelines({directory_ + "/missing"}, directory_ + "/out"), Error);
  merge_timelines({}, directory_ + "/out");
  EXPECT_TRUE(json::parse(read(directory_ + "/out")).empty());
}

}  // namespace
}  // namespace lockstep::trace
