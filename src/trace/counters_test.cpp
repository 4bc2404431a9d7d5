#include "trace/counters.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "trace/recorder.hpp"

namespace lockstep::trace {
namespace {

TEST(Counters, CountOperationsBytesAndTimeByKind) {
  Recorder recorder;
  const char* all_reduce = "all-reduce";
  for (int i = 0; i < 3; ++i) {
    Span span;
    recorder.submitted(span, all_reduce, "x", 1, 1000, 2);
    recorder.matched(span);
    recorder.done(span);
  }
  Span failed, pending;
  recorder.submitted(failed, all_reduce, "y", 2, 1000, 2);
  recorder.failed(failed, "why");
  recorder.failed(failed, "a second end counts for nothing");
  recorder.submitted(pending, "barrier", "", 3, 0, 2);
  recorder.step_began(1);
  recorder.step_ended();
  recorder.counters().notices_taken(5);
  recorder.counters().stalled();

  const auto snapshot = recorder.counters().snapshot();
  EXPECT_EQ(Counters::value_of(snapshot, "operations_submitted", "all-reduce"), 4U);
  EXPECT_EQ(Counters::value_of(snapshot, "operations_done", "all-reduce"), 3U);
  EXPECT_EQ(Counters::value_of(snapshot, "operations_failed", "all-reduce"), 1U);
  EXPECT_EQ(Counters::value_of(snapshot, "bytes_done", "all-reduce"), 3000U);
  EXPECT_GT(Counters::value_of(snapshot, "waited_ns", "all-reduce"), 0U);
  EXPECT_GT(Counters::value_of(snapshot, "worked_ns", "all-reduce"), 0U);
  EXPECT_EQ(Counters::value_of(snapshot, "operations_submitted", "barrier"), 1U);
  EXPECT_EQ(Counters::value_of(snapshot, "operations_done", "barrier"), 0U);
  EXPECT_EQ(Counters::value_of(snapshot, "steps"), 1U);
  EXPECT_EQ(Counters::value_of(snapshot, "stalls"), 1U);
  EXPECT_EQ(Counters::value_of(snapshot, "notices"), 5U);
}

TEST(Counters, MeasureTheTimeThatPassed) {
  Counters counters;
  const ClockPoint begin = ClockPoint::now();
  ClockPoint end = ClockPoint::now();
  while (end.steady_ns - begin.steady_ns < 5'000'000) end = ClockPoint::now();
  counters.done("all-reduce", 1, end.at - begin.at, 0);
  const auto waited = Counters::value_of(counters.snapshot(), "waited_ns", "all-reduce");
  EXPECT_NEAR(static_cast<double>(waited), static_cast<double>(end.steady_ns - begin.steady_ns), 1e5);
}

TEST(Counters, MoreKindsThanRowsShareTheLast) {
  Counters counters;
  std::vector<std::string> kinds;
  for (int i = 0; i < 40; ++i) kinds.push_back("kind " + std::to_string(i));
  for (const std::string& kind : kinds) counters.submitted(kind.c_str());
  const auto snapshot = counters.snapshot();
  EXPECT_EQ(Counters::value_of(snapshot, "operations_submitted", "kind 30"), 1U);
  EXPECT_EQ(Counters::value_of(snapshot, "operations_submitted", "other"), 9U);
}

TEST(Counters, AreReadWhileTheyCount) {
  Counters counters;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::uint64_t last = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      const auto now = Counters::value_of(counters.snapshot(), "operations_done", "all-reduce");
      EXPECT_GE(now, last);
      last = now;
    }
  });
  for (int i = 0; i < 20'000; ++i) counters.done("all-reduce", 4, 1, 1);
  stop = true;
  reader.join();
  EXPECT_EQ(Counters::value_of(counters.snapshot(), "bytes_done", "all-reduce"), 80'000U);
}

}  // namespace
}  // namespace lockstep::trace
