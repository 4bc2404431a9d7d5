#include "launcher/root_cause.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <vector>

namespace lockstep::launcher {
namespace {

/// Ranks that end in the order in which they are added, unless told otherwise.
class World {
 public:
  World& exits(int code, std::set<int> lost = {}) { return add(RankState::exited, code, std::move(lost)); }
  World& killed(int signal_number, std::set<int> lost = {}) {
    return add(RankState::killed, signal_number, std::move(lost));
  }
  World& runs() { return add(RankState::running, 0, {}); }
  World& is_stopped() { return add(RankState::stopped, 0, {}); }
  World& at(int order) {
    outcomes_.back().order = order;
    return *this;
  }
  World& told() {
    outcomes_.back().told_to_end = true;
    return *this;
  }

  int blamed() const {
    const auto index = choose_root_cause(outcomes_);
    return index ? static_cast<int>(*index) : -1;
  }

 private:
  World& add(RankState state, int code, std::set<int> lost) {
    const int rank = static_cast<int>(outcomes_.size());
    outcomes_.push_back({rank, 100 + rank, state, code, false, rank, std::move(lost)});
    return *this;
  }
  std::vector<RankOutcome> outcomes_;
};

TEST(RootCause, nobody_is_blamed_when_all_went_well) { EXPECT_EQ(World().exits(0).exits(0).blamed(), -1); }

TEST(RootCause, the_earliest_of_equals) { EXPECT_EQ(World().exits(1).at(5).exits(1).at(2).exits(1).at(3).blamed(), 1); }

TEST(RootCause, a_kill_counts_before_an_earlier_exit) {
  EXPECT_EQ(World().exits(1).at(0).killed(SIGKILL).at(1).blamed(), 1);
}

TEST(RootCause, an_abort_is_a_reaction_and_does_not_count_before_an_earlier_exit) {
  EXPECT_EQ(World().killed(SIGABRT).at(1).exits(1).at(0).blamed(), 1);
}

TEST(RootCause, who_reports_a_lost_rank_follows_it) {
  EXPECT_EQ(World().exits(1, {2}).at(0).exits(1, {2}).at(1).exits(1).at(2).blamed(), 2);
  EXPECT_EQ(World().killed(SIGABRT, {1}).at(0).exits(7).at(1).blamed(), 1);
}

TEST(RootCause, a_chain_of_followers_leads_to_its_start) {
  EXPECT_EQ(World().exits(1, {1}).at(0).exits(1, {2}).at(1).exits(1).at(2).blamed(), 2);
}

TEST(RootCause, ranks_that_report_each_other_are_judged_by_time) {
  EXPECT_EQ(World().exits(1, {1}).at(1).exits(1, {0}).at(0).blamed(), 1);
}

TEST(RootCause, who_lost_a_rank_that_did_not_fail_is_blamed) {
  EXPECT_EQ(World().exits(1, {1}).exits(0).blamed(), 0);
  EXPECT_EQ(World().exits(1, {1}).runs().blamed(), 0);
  EXPECT_EQ(World().exits(1, {9}).exits(0).blamed(), 0);
}

TEST(RootCause, an_end_that_the_launcher_asked_for_is_no_failure) {
  EXPECT_EQ(World().killed(SIGTERM).told().at(0).exits(1).at(1).blamed(), 1);
  EXPECT_EQ(World().killed(SIGKILL).told().exits(1).told().blamed(), -1);
}

TEST(RootCause, a_stopped_rank_is_blamed_when_its_peers_gave_it_up) {
  EXPECT_EQ(World().exits(1, {1}).is_stopped().blamed(), 1);
  EXPECT_EQ(World().exits(1).is_stopped().blamed(), 0);
  EXPECT_EQ(World().runs().is_stopped().blamed(), -1);
}

TEST(RootCause, only_a_death_from_outside_is_certain) {
  RankOutcome outcome{.rank = 0,
                      .pid = 1,
                      .state = RankState::killed,
                      .code = SIGKILL,
                      .told_to_end = false,
                      .order = 0,
                      .lost_ranks = {}};
  EXPECT_TRUE(is_certain_cause(outcome));
  outcome.lost_ranks = {1};
  EXPECT_FALSE(is_certain_cause(outcome));
  outcome.lost_ranks.clear();
  outcome.code = SIGTERM;
  EXPECT_FALSE(is_certain_cause(outcome));
  outcome.code = SIGABRT;
  EXPECT_FALSE(is_certain_cause(outcome));
  outcome.state = RankState::exited;
  EXPECT_FALSE(is_certain_cause(outcome));
}

}  // namespace
}  // namespace lockstep::launcher
