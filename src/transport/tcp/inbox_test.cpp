#include "transport/tcp/inbox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kBytes = 100'000;

TEST(Inbox, WhatIsAttachedStaysWhereItArrived) {
  Inbox inbox;
  const std::span<std::byte> place = inbox.place_for_attached(kBytes);
  std::fill(place.begin(), place.end(), std::byte{7});
  inbox.add(Announcement{.notice = {}, .placed = kBytes});
  const NoticeRef notice = inbox.next();
  EXPECT_EQ(notice.attached.data(), place.data());
  EXPECT_EQ(notice.attached.size(), kBytes);
}

// No rank does so; one that did must not make this one write to memory that is somebody else's by now.
TEST(Inbox, ANoticeThatComesWholeLeavesTheOneThatIsArrivingAlone) {
  Inbox inbox;
  const std::span<std::byte> place = inbox.place_for_attached(kBytes);
  const std::vector<std::byte> whole(kBytes, std::byte{3});
  inbox.add(Announcement{.notice = {}, .attached = whole});
  inbox.add(Announcement{});
  std::fill(place.begin(), place.end(), std::byte{7});
  inbox.add(Announcement{.notice = {}, .placed = kBytes});

  EXPECT_TRUE(std::ranges::equal(inbox.next().attached, whole));
  EXPECT_TRUE(inbox.next().attached.empty());
  EXPECT_EQ(inbox.next().attached.data(), place.data());
}

}  // namespace
}  // namespace lockstep::transport::tcp
