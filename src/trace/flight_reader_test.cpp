#include "trace/flight_reader.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "trace/ticks.hpp"

namespace lockstep::trace {
namespace {

TEST(FlightReader, sees_what_this_process_does) {
  EXPECT_FALSE(FlightReader::read(::getpid()));
  FlightRecord record;
  record.publish();
  const auto first = record.submitted(ticks(), "all-reduce", "fc1.weight", 7, 4096, 4);
  record.matched(first, ticks());
  record.done(first, ticks(), ticks());
  const auto second = record.submitted(ticks(), "barrier", "", 8, 0, 4);
  record.note(second, "waits for rank 2");

  const auto seen = FlightReader::read(::getpid());
  ASSERT_TRUE(seen);
  ASSERT_EQ(seen->size(), 2U);
  EXPECT_EQ(seen->at(0).kind, "all-reduce");
  EXPECT_EQ(seen->at(0).name, "fc1.weight");
  EXPECT_FALSE(seen->at(0).is_open());
  EXPECT_EQ(seen->at(1).kind, "barrier");
  EXPECT_EQ(seen->at(1).note, "waits for rank 2");
  EXPECT_TRUE(seen->at(1).is_open());
  EXPECT_FALSE(seen->at(1).is_step);
  EXPECT_GE(seen->at(1).seconds, 0);
  EXPECT_LT(seen->at(1).seconds, 60);
}

TEST(FlightReader, is_gone_with_the_record) {
  { FlightRecord().publish(); }
  EXPECT_FALSE(FlightReader::read(::getpid()));
}

TEST(FlightReader, the_newest_of_several) {
  FlightRecord old;
  old.publish();
  old.submitted(ticks(), "gather", "old", 1, 8, 2);
  FlightRecord current;
  current.publish();
  current.submitted(ticks(), "gather", "new", 1, 8, 2);
  const auto seen = FlightReader::read(::getpid());
  ASSERT_TRUE(seen);
  ASSERT_EQ(seen->size(), 1U);
  EXPECT_EQ(seen->front().name, "new");
}

TEST(FlightReader, a_process_that_is_not_there) { EXPECT_FALSE(FlightReader::read(0x3fffffff)); }

}  // namespace
}  // namespace lockstep::trace
