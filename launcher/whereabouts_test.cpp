#include "launcher/whereabouts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace lockstep::launcher {
namespace {

Whereabouts waiting(int rank, const std::string& operation) {
  Whereabouts where;
  where.process = {rank, 100 + rank};
  where.state = 'S';
  where.waiting_in = operation;
  where.waiting_seconds = 12;
  return where;
}

Whereabouts missing(int rank, char state, std::vector<std::string> stack = {}) {
  Whereabouts where;
  where.process = {rank, 100 + rank};
  where.state = state;
  where.stack = std::move(stack);
  where.last = "barrier, submitted 3.0 s ago";
  return where;
}

TEST(Whereabouts, who_waits_and_who_is_missing) {
  const std::string operation = "all-reduce `fc1.weight`";
  EXPECT_EQ(waiting_sentence({waiting(0, operation), waiting(1, operation), missing(2, 'T'), waiting(3, operation)}),
            "waiting: 0,1,3 in all-reduce `fc1.weight`; missing: 2, state T (stopped)");
  EXPECT_EQ(waiting_sentence({waiting(0, operation), missing(1, 'S', {"Thread 1:", "  File \"a.py\", line 3 in f"})}),
            "waiting: 0 in all-reduce `fc1.weight`; missing: 1, state S (sleeping), at File \"a.py\", line 3 in f");
}

TEST(Whereabouts, hosts_are_named) {
  Whereabouts elsewhere = missing(2, 'T');
  elsewhere.host = "beta";
  EXPECT_EQ(waiting_sentence({waiting(0, "barrier"), elsewhere}),
            "waiting: 0 in barrier; missing: 2 on beta, state T (stopped)");
  EXPECT_EQ(describe({elsewhere})[0].rfind("rank 2 on beta (pid 102): state T (stopped)", 0), 0U);
}

TEST(Whereabouts, ranks_that_wait_for_different_things) {
  EXPECT_EQ(waiting_sentence({waiting(0, "barrier"), waiting(1, "all-reduce `x`")}),
            "waiting: 1 in all-reduce `x`, 0 in barrier");
}

TEST(Whereabouts, nothing_to_say_when_nobody_waits_or_all_do) {
  EXPECT_EQ(waiting_sentence({missing(0, 'R'), missing(1, 'R')}), "");
  EXPECT_EQ(waiting_sentence({waiting(0, "barrier"), waiting(1, "barrier")}), "");
  EXPECT_EQ(waiting_sentence({}), "");
}

TEST(Whereabouts, a_stuck_job_shows_those_that_are_missing) {
  const auto lines = describe_missing({waiting(0, "barrier"), missing(1, 'S', {"Thread 1:", "  File \"a.py\""})});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0],
            "rank 1 (pid 101): state S (sleeping), in no operation; the last was barrier, submitted 3.0 s ago");
  EXPECT_EQ(lines[2], "      File \"a.py\"");
  EXPECT_EQ(lines[3].rfind("waiting: 0 in barrier; missing: 1", 0), 0U);
}

TEST(Whereabouts, a_process_without_engine_and_python_has_a_state_only) {
  const auto found = find_whereabouts({{0, ::getpid()}, {1, 0x3fffffff}});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].state, 'R');
  EXPECT_TRUE(found[0].stack.empty());
  EXPECT_FALSE(found[0].waiting_in);
  EXPECT_EQ(found[1].state, '?');
}

}  // namespace
}  // namespace lockstep::launcher
