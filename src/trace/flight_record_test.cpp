#include "trace/flight_record.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "trace/recorder.hpp"

namespace lockstep::trace {
namespace {

using testing::TempDir;

TEST(FlightRecord, TellsWhatBecameOfEachOperation) {
  Recorder recorder;
  Span done, waiting, lonely, failed, running;
  recorder.step_began(41);
  recorder.submitted(done, "all-reduce", "layer1.weight", 1, 4 << 20, 4);
  recorder.matched(done);
  recorder.done(done);
  recorder.step_ended();
  recorder.submitted(waiting, "broadcast", "bias", 2, 512, 6);
  recorder.waits_for(waiting, std::vector<int>{2, 5});
  recorder.submitted(lonely, "barrier", "", 3, 0, 4);
  recorder.submitted(running, "all-gather", "rows", 4, 2048, 4);
  recorder.matched(running);
  recorder.submitted(failed, "all-reduce", "shapes", 5, 8, 4);
  recorder.failed(failed, "ranks disagree");

  const std::string text = recorder.flight_record().text(1, "a test asked for it");
  auto line_with = [&](const std::string& part) {
    const std::size_t at = text.find(part);
    if (at == std::string::npos) return std::string("(none)");
    const std::size_t begin = text.rfind('\n', at) + 1;
    return text.substr(begin, text.find('\n', at) - begin);
  };
  EXPECT_NE(text.find("Flight record of rank 1 "), std::string::npos);
  EXPECT_NE(text.find("Written because: a test asked for it\n"), std::string::npos);
  EXPECT_NE(line_with("step 41").find("took "), std::string::npos) << text;
  EXPECT_NE(line_with("all-reduce 'layer1.weight'").find("4.0 MB      4  done, waited "), std::string::npos) << text;
  EXPECT_NE(line_with("broadcast 'bias'").find(", waiting for ranks 2, 5"), std::string::npos) << text;
  EXPECT_NE(line_with("barrier (no name)").find(", not all ranks have submitted it"), std::string::npos) << text;
  EXPECT_NE(line_with("all-gather 'rows'").find("running "), std::string::npos) << text;
  EXPECT_NE(line_with("'shapes'").find(": ranks disagree"), std::string::npos) << text;
  EXPECT_LT(text.find("step 41"), text.find("layer1.weight"));
  EXPECT_LT(text.find("layer1.weight"), text.find("shapes"));
}

TEST(FlightRecord, AFailureKeepsWhomItWaitedFor) {
  Recorder recorder;
  Span span;
  recorder.submitted(span, "all-reduce", "x", 1, 4, 2);
  recorder.waits_for(span, std::vector<int>{1});
  recorder.failed(span, "lost rank 1");
  const auto entries = recorder.flight_record().entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].state, FlightRecord::State::failed);
  EXPECT_EQ(entries[0].note.view(), "waiting for rank 1");
}

TEST(FlightRecord, KeepsTheLastOperationsAndThoseThatHang) {
  FlightRecord record(8);
  record.submitted(1, "all-reduce", "hangs", 0, 0, 2);
  for (int i = 1; i <= 100; ++i) {
    const auto ticket = record.submitted(1, "all-reduce", std::to_string(i), static_cast<std::uint64_t>(i), 0, 2);
    record.matched(ticket, 2);
    record.done(ticket, 2, 3);
  }
  const auto entries = record.entries();
  ASSERT_EQ(entries.size(), 8U);
  EXPECT_EQ(entries.front().name.view(), "hangs");
  EXPECT_EQ(entries.front().state, FlightRecord::State::pending);
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(entries[i].id, 93 + i);
}

TEST(FlightRecord, AnOperationThatLostItsPlaceChangesNoOther) {
  FlightRecord record(2);
  const auto first = record.submitted(1, "all-reduce", "first", 1, 0, 2);
  record.submitted(1, "all-reduce", "second", 2, 0, 2);
  record.submitted(1, "all-reduce", "third", 3, 0, 2);  // all hang: it takes the oldest one's place
  record.done(first, 4, 5);
  record.failed({}, 5, "never submitted");
  for (const auto& entry : record.entries()) EXPECT_EQ(entry.state, FlightRecord::State::pending);
}

TEST(FlightRecord, ALongNameKeepsItsEnd) {
  FlightRecord record(4);
  const std::string name = "module." + std::string(100, 'x') + ".layers.11.attention.query.weight";
  record.submitted(1, "all-reduce", name, 1, 0, 2);
  record.submitted(1, "all-reduce", std::string(60, 'x') + "\u00e4" + std::string(44, 'y'), 2, 0, 2);
  const auto entries = record.entries();
  EXPECT_EQ(entries[0].name.view(), ".." + name.substr(name.size() - 45));
  EXPECT_EQ(entries[1].name.view(), ".." + std::string(44, 'y')) << "half a character was kept";
}

TEST(FlightRecord, IsWrittenToAFile) {
  FlightRecord record;
  record.submitted(ticks(), "barrier", "", 1, 0, 2);
  const std::string directory = TempDir();
  const auto path = record.write_file(directory, 7, "a test");
  ASSERT_TRUE(path);
  EXPECT_EQ(*path, directory + "/lockstep-flight-7.txt");
  std::ifstream file(*path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("barrier (no name)"), std::string::npos);
  std::filesystem::remove(*path);
  EXPECT_FALSE(record.write_file(directory + "/no/such/place", 7, "a test"));
}

// Every field of an entry is made from one number, so a torn read would show.
TEST(FlightRecord, IsReadWhileItIsWritten) {
  FlightRecord record(16);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
      const auto ticket = record.submitted(static_cast<Ticks>(i), "all-reduce", std::to_string(i), i, i, 2);
      record.matched(ticket, static_cast<Ticks>(i));
      if (i % 2 == 0) record.done(ticket, static_cast<Ticks>(i), static_cast<Ticks>(i));
      if (i % 2 == 1) record.failed(ticket, static_cast<Ticks>(i), std::to_string(i));
    }
  });
  std::size_t seen = 0;
  std::uint64_t last = 0;
  while (seen < 20'000 || last < 10'000) {
    for (const auto& entry : record.entries()) {
      ++seen;
      last = entry.id;
      ASSERT_EQ(entry.serial, entry.id);
      ASSERT_EQ(entry.bytes, entry.id);
      ASSERT_EQ(entry.submitted, static_cast<Ticks>(entry.id));
      ASSERT_EQ(entry.name.view(), std::to_string(entry.id));
      if (entry.state == FlightRecord::State::failed) {
        ASSERT_EQ(entry.note.view(), std::to_string(entry.id));
      } else {
        ASSERT_EQ(entry.note.view(), "");
      }
      ASSERT_EQ(entry.ended != 0,
                entry.state == FlightRecord::State::failed || entry.state == FlightRecord::State::done);
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace lockstep::trace
