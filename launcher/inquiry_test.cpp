#include "launcher/inquiry.hpp"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

Whereabouts at(int rank, std::optional<std::string> operation) {
  Whereabouts where;
  where.process = {rank, 100 + rank};
  where.state = 'S';
  where.waiting_in = std::move(operation);
  return where;
}

TEST(Inquiry, answers_of_hosts_become_one_in_the_order_of_the_ranks) {
  Inquiry inquiry(1, Inquiry::Asker::visitor, {"alpha", "beta"});
  inquiry.take(1, {at(2, std::nullopt), at(3, "barrier")});
  EXPECT_FALSE(inquiry.is_over());
  inquiry.take(0, {at(0, "barrier"), at(1, "barrier")});
  inquiry.take(0, {at(7, "barrier")});  // not asked any more
  EXPECT_TRUE(inquiry.is_over());
  const auto lines = inquiry.lines();
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0].rfind("rank 0 on alpha (pid 100): ", 0), 0U);
  EXPECT_EQ(lines[3].rfind("rank 3 on beta (pid 103): ", 0), 0U);
  EXPECT_EQ(lines[4], "waiting: 0,1,3 in barrier; missing: 2 on beta, state S (sleeping)");
}

TEST(Inquiry, a_stall_shows_who_is_missing_or_nothing) {
  Inquiry stuck(1, Inquiry::Asker::stall, {"alpha", "beta"});
  stuck.take(0, {at(0, "barrier")});
  stuck.take(1, {at(1, std::nullopt)});
  const auto lines = stuck.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].rfind("rank 1 on beta", 0), 0U);

  Inquiry over(2, Inquiry::Asker::stall, {"alpha"});
  over.take(0, {at(0, std::nullopt), at(1, std::nullopt)});
  EXPECT_TRUE(over.lines().empty());
}

TEST(Inquiry, a_host_that_is_silent_is_named) {
  Inquiry inquiry(1, Inquiry::Asker::user, {"alpha", "beta"});
  inquiry.take(0, {at(0, "barrier")});
  EXPECT_EQ(inquiry.lines().front(), "beta has not answered within 2 s");
}

}  // namespace
}  // namespace lockstep::launcher
