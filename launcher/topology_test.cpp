#include "launcher/topology.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launcher {
namespace {

using Cpus = std::vector<std::vector<int>>;

// Two memory nodes with two cores of two threads each.
const std::vector<Core> kTwoNodes = {{{0, 4}, 0}, {{1, 5}, 0}, {{2, 6}, 1}, {{3, 7}, 1}};
const std::vector<Core> kOneNode = {{{0}, 0}, {{1}, 0}, {{2}, 0}};

TEST(Topology, each_rank_gets_neighbouring_cores) {
  EXPECT_EQ(share_out(kTwoNodes, 2, Binding::core), (Cpus{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(share_out(kTwoNodes, 4, Binding::core), (Cpus{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(share_out(kOneNode, 2, Binding::core), (Cpus{{0}, {1, 2}}));
}

TEST(Topology, more_ranks_than_cores_are_not_bound_to_cores) {
  EXPECT_EQ(share_out(kOneNode, 4, Binding::core), Cpus{});
}

TEST(Topology, a_rank_is_bound_to_the_nodes_of_its_cores) {
  EXPECT_EQ(share_out(kTwoNodes, 4, Binding::node), (Cpus{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}, {2, 3, 6, 7}}));
  EXPECT_EQ(share_out(kTwoNodes, 8, Binding::node).back(), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(share_out(kTwoNodes, 1, Binding::node), (Cpus{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(Topology, by_default_only_machines_with_several_nodes_are_bound) {
  EXPECT_EQ(share_out(kTwoNodes, 2, Binding::automatic), share_out(kTwoNodes, 2, Binding::node));
  EXPECT_EQ(share_out(kOneNode, 2, Binding::automatic), Cpus{});
  EXPECT_EQ(share_out(kTwoNodes, 2, Binding::none), Cpus{});
}

TEST(Topology, lists_are_short) {
  EXPECT_EQ(list_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(list_text({5}), "5");
  EXPECT_EQ(list_text({}), "");
}

TEST(Topology, the_cores_of_this_machine) {
  EXPECT_GE(memory_nodes(), 1);
  ASSERT_TRUE(has_hwloc());
  const auto cores = read_cores();
  ASSERT_TRUE(cores);
  EXPECT_FALSE(cores->empty());
}

}  // namespace
}  // namespace lockstep::launcher
