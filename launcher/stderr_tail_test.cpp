#include "launcher/stderr_tail.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::launcher {
namespace {

void add_frames(StderrTail& tail, int count) {
  for (int i = 0; i < count; ++i) tail.add("  File \"train.py\", line " + std::to_string(i));
}

TEST(StderrTail, keeps_the_last_lines) {
  StderrTail tail;
  for (int i = 0; i < 100; ++i) tail.add(std::to_string(i));
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), 30u);
  EXPECT_EQ(lines.front(), "70");
  EXPECT_EQ(lines.back(), "99");
}

TEST(StderrTail, keeps_a_long_traceback_whole) {
  StderrTail tail;
  tail.add("before");
  tail.add("Traceback (most recent call last):");
  add_frames(tail, 80);
  tail.add("ValueError: boom");
  tail.add("one line after");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), 83u);
  EXPECT_EQ(lines.front(), "Traceback (most recent call last):");
  EXPECT_EQ(lines[81], "ValueError: boom");
}

TEST(StderrTail, keeps_chained_exceptions_together) {
  StderrTail tail;
  tail.add("Traceback (most recent call last):");
  add_frames(tail, 40);
  tail.add("KeyError: 'x'");
  tail.add("");
  tail.add("During handling of the above exception, another exception occurred:");
  tail.add("");
  tail.add("Traceback (most recent call last):");
  add_frames(tail, 40);
  tail.add("ValueError: boom");
  EXPECT_EQ(tail.lines().size(), 87u);
  EXPECT_EQ(tail.lines()[41], "KeyError: 'x'");
}

TEST(StderrTail, an_unrelated_later_traceback_replaces_the_first) {
  StderrTail tail;
  tail.add("Traceback (most recent call last):");
  add_frames(tail, 2);
  tail.add("KeyError: 'handled'");
  tail.add("going on");
  tail.add("Traceback (most recent call last):");
  tail.add("ValueError: boom");
  EXPECT_EQ(tail.lines(), (std::vector<std::string>{"Traceback (most recent call last):", "ValueError: boom"}));
}

TEST(StderrTail, forgets_a_traceback_that_was_survived) {
  StderrTail tail;
  tail.add("Traceback (most recent call last):");
  tail.add("KeyError: 'handled'");
  for (int i = 0; i < 40; ++i) tail.add("step " + std::to_string(i));
  EXPECT_EQ(tail.lines().size(), 30u);
  EXPECT_EQ(tail.lines().front(), "step 10");
}

TEST(StderrTail, a_boundless_traceback_loses_its_middle) {
  StderrTail tail;
  tail.add("Traceback (most recent call last):");
  add_frames(tail, 3000);
  tail.add("RecursionError: too deep");
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), 401u);
  EXPECT_EQ(lines.front(), "Traceback (most recent call last):");
  EXPECT_EQ(lines[200], "... 2602 lines left out ...");
  EXPECT_EQ(lines.back(), "RecursionError: too deep");
}

TEST(StderrTail, notes_the_ranks_reported_as_lost) {
  StderrTail tail;
  tail.add("lockstep.Error: all-reduce 'w': lost rank 3 (pid 17), lost rank 12.");
  tail.add("we have lost rank and file");
  EXPECT_EQ(tail.lost_ranks(), (std::set<int>{3, 12}));
}

TEST(StderrTail, notes_where_a_loss_was_noticed) {
  StderrTail tail;
  tail.add(
      "PeerLostError: lost rank 3 (pid 17): the process died. Noticed by rank 0 while waiting in all-reduce 'a.b'. "
      "Look.");
  tail.add("PeerLostError: lost rank 4 (pid 18): the process died. Noticed by rank 0 while waiting in barrier. Look.");
  EXPECT_EQ(tail.noticed_in(), "all-reduce 'a.b'");
}

TEST(StderrTail, a_rank_that_ended_the_job_counts_as_lost) {
  StderrTail tail;
  tail.add("lockstep.errors.AbortedError: rank 3 aborted the job: rank 3 ended with ValueError: boom");
  tail.add("rank 4 is fine, rank x aborted the job, rank 5");
  EXPECT_EQ(tail.lost_ranks(), (std::set<int>{3}));
}

TEST(StderrTail, stalls_are_counted) {
  StderrTail tail;
  tail.add("lockstep warning: rank 1: barrier 'epoch' has waited 3 s for rank 2");
  tail.add("the user has waited long enough");
  EXPECT_EQ(tail.stalls(), 1U);
  EXPECT_TRUE(tail.lost_ranks().empty());
}

}  // namespace
}  // namespace lockstep::launcher
