#include "launcher/preload.hpp"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

TEST(Preload, comes_after_what_the_user_has) {
  EXPECT_EQ(with_preload("", "/l/ours.so"), "/l/ours.so");
  EXPECT_EQ(with_preload("/a.so:/b.so", "/l/ours.so"), "/a.so:/b.so:/l/ours.so");
  EXPECT_EQ(with_preload(" /a.so  b.so ", "/l/ours.so"), "/a.so:b.so:/l/ours.so");
}

TEST(Preload, comes_before_an_allocator_of_the_users) {
  EXPECT_EQ(with_preload("/a.so:/usr/lib/libjemalloc.so.2:/b.so", "/l/ours.so"),
            "/a.so:/l/ours.so:/usr/lib/libjemalloc.so.2:/b.so");
  EXPECT_EQ(with_preload("libtcmalloc_minimal.so.4", "/l/ours.so"), "/l/ours.so:libtcmalloc_minimal.so.4");
}

TEST(Preload, is_there_once_in_a_job_inside_a_job) {
  EXPECT_EQ(with_preload("/l/ours.so:/a.so", "/l/ours.so"), "/a.so:/l/ours.so");
}

}  // namespace
}  // namespace lockstep::launcher
