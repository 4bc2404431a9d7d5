#include "launcher/hosts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "launcher/errors.hpp"

namespace lockstep::launcher {
namespace {

using List = std::vector<HostSlots>;

TEST(Hosts, a_list_names_them_with_their_slots) {
  EXPECT_EQ(parse_host_list("a:2,b"), (List{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(parse_host_list("me@a:2,b:1,me@a:1"), (List{{"me@a", 3}, {"b", 1}}));
  for (const char* wrong : {"a:0", "a:x", "a:", ":2", "a:2,,b", "a:99999"}) {
    EXPECT_THROW(parse_host_list(wrong), UsageError) << wrong;
  }
}

TEST(Hosts, a_file_may_be_written_in_both_ways) {
  const std::string path = testing::TempDir() + "hostfile";
  std::ofstream(path) << "# ours\na slots=2\n\nb:3 # the large one\nc\n";
  EXPECT_EQ(read_hostfile(path), (List{{"a", 2}, {"b", 3}, {"c", 1}}));
  std::ofstream(path) << "# none\n";
  EXPECT_THROW(read_hostfile(path), UsageError);
  ::unlink(path.c_str());
  EXPECT_THROW(read_hostfile(path), UsageError);
}

TEST(Hosts, ranks_fill_them_in_their_order) {
  const List hosts = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_EQ(share_ranks(hosts, 3), (List{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(share_ranks(hosts, 6), hosts);
  EXPECT_THROW(share_ranks(hosts, 7), UsageError);
}

TEST(Hosts, a_rank_knows_where_it_is) {
  const Placement place = place_on_hosts({{"a", 3}, {"b", 2}}, 4);
  EXPECT_EQ(place.rank, 4);
  EXPECT_EQ(place.size, 5);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 2);
  EXPECT_EQ(place.cross_rank, 1);
  EXPECT_EQ(place.cross_size, 2);
}

}  // namespace
}  // namespace lockstep::launcher
