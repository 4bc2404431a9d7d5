#include "base/spare_memory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/sanitizer_test.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kMegabyte = 1 << 20;

TEST(SpareMemory, IsUsedAgainForAboutTheSameSize) {
  const std::byte* first = nullptr;
  {
    const SpareMemory memory(kMegabyte);
    EXPECT_EQ(memory.size(), kMegabyte);
    first = memory.data();
  }
  {
    const SpareMemory much_less(kMegabyte / 4);
    EXPECT_NE(much_less.data(), first);
    const SpareMemory less(kMegabyte - 100'000);
    EXPECT_EQ(less.data(), first);
    EXPECT_EQ(less.span().size(), kMegabyte - 100'000);
  }
  const SpareMemory more(kMegabyte + 1);
  EXPECT_NE(more.data(), first);
}

TEST(SpareMemory, MakesRoomForSizesThatAreUsedNow) {
  for (std::size_t kilobytes = 16; kilobytes < 16 << 10; kilobytes *= 2) const SpareMemory once(kilobytes << 10);
  const std::byte* used = SpareMemory(10 * kMegabyte).data();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(SpareMemory(10 * kMegabyte).data(), used);
}

TEST(SpareMemory, MovesWithItsOwner) {
  SpareMemory one(kMegabyte), other;
  std::byte* const block = one.data();
  EXPECT_EQ(other.data(), nullptr);
  other = std::move(one);
  EXPECT_EQ(other.data(), block);
  std::vector<SpareMemory> many;
  many.push_back(std::move(other));
  EXPECT_EQ(many.back().data(), block);
}

// Also when another thread is just taking or giving back some: a child destroys its copy of an engine.
TEST(SpareMemory, IsGivenBackInAForkedChild) {
  std::atomic<bool> ends = false;
  std::thread other([&] {
    while (!ends) const SpareMemory memory(kMegabyte);
  });
  for (int i = 0; i < (under_sanitizer() ? 10 : 300); ++i) {
    SpareMemory mine(kMegabyte / 4);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // one that waits for a thread it does not have must not hang the test
      mine = {};
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    if (status == 0) continue;
    ADD_FAILURE() << "child " << i << " ended with status " << status;
    break;
  }
  ends = true;
  other.join();
}

}  // namespace
}  // namespace lockstep
