#include "launcher/report.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <string>

namespace lockstep::launcher {
namespace {

FailureReport failure(RankState state, int code) {
  FailureReport report;
  report.cause.rank = 1;
  report.cause.pid = 4711;
  report.cause.state = state;
  report.cause.code = code;
  report.all.resize(2);
  report.all[1] = report.cause;
  report.program = "/bin/x";
  return report;
}

std::string text_of(const FailureReport& report) {
  std::string text;
  for (const std::string& line : describe(report)) text += line + "\n";
  return text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Report, names_rank_process_and_exit_code) {
  const auto lines = describe(failure(RankState::exited, 3));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[0], "root cause: rank 1 (pid 4711) exited with code 3"));
  EXPECT_TRUE(contains(lines[1], "next step: "));
}

TEST(Report, shows_the_last_words_just_above) {
  FailureReport report = failure(RankState::exited, 1);
  report.last_words = {"Traceback (most recent call last):", "ValueError: boom"};
  const auto lines = describe(report);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[2], "    ValueError: boom");
}

TEST(Report, a_kill_that_we_did_not_send_hints_at_memory) {
  FailureReport report = failure(RankState::killed, SIGKILL);
  EXPECT_TRUE(contains(text_of(report), "killed by SIGKILL (9)\n"));
  EXPECT_TRUE(contains(text_of(report), "Likely out of memory"));
  report.memory = MemoryEvidence::control_group;
  EXPECT_TRUE(contains(text_of(report), "killed by SIGKILL (9): out of memory"));
}

TEST(Report, the_collective_in_which_it_was_missed_is_named) {
  FailureReport report = failure(RankState::killed, SIGKILL);
  report.all[0].lost_ranks = {1};
  report.all[0].noticed_in = "all-reduce 'w'";
  EXPECT_TRUE(contains(text_of(report), "killed by SIGKILL (9); the others waited for it in all-reduce 'w'\n"));
}

TEST(Report, ranks_that_were_stopped_because_of_it_are_mentioned) {
  FailureReport report = failure(RankState::exited, 3);
  EXPECT_FALSE(contains(text_of(report), "other ranks"));
  report.all[0].told_to_end = true;
  EXPECT_TRUE(contains(text_of(report), "exited with code 3; the other ranks were stopped because of it\n"));
}

TEST(Report, a_program_that_cannot_be_executed) {
  EXPECT_TRUE(contains(text_of(failure(RankState::not_started, ENOEXEC)),
                       "rank 1 could not be started: /bin/x: Exec format error"));
}

TEST(Report, a_rank_that_waits_for_one_that_left_is_told_so) {
  FailureReport report = failure(RankState::exited, 1);
  report.cause.lost_ranks = {0};
  report.all[0].state = RankState::exited;
  EXPECT_TRUE(contains(text_of(report), "rank 0 had already finished"));
}

}  // namespace
}  // namespace lockstep::launcher
