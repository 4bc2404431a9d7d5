#include "base/memory_limit.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

// A machine made of files.
class MemoryLimit : public testing::Test {
 protected:
  MemoryLimit() : root_(testing::TempDir() + "memory_limit_" + std::to_string(::getpid())) {}
  ~MemoryLimit() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(MemoryLimit, Version2TheTightestLevelCountsAndCacheIsFree) {
  write("/proc/self/cgroup", "0::/job/rank\n");
  write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  write("/sys/fs/cgroup/job/rank/memory.current", "100\n");
  EXPECT_EQ(memory_left(root_), std::nullopt);
  write("/sys/fs/cgroup/job/memory.max", "1000\n");
  write("/sys/fs/cgroup/job/memory.current", "700\n");
  write("/sys/fs/cgroup/job/memory.stat", "anon 400\nactive_file 60\ninactive_file 40\nshmem 200\n");
  EXPECT_EQ(memory_left(root_), 400U);
  write("/sys/fs/cgroup/job/memory.current", "1200\n");
  EXPECT_EQ(memory_left(root_), 0U);
}

TEST_F(MemoryLimit, Version1) {
  write("/proc/self/cgroup", "5:devices:/\n4:memory:/box\n0::/\n");
  write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000\n");
  write("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2000\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(memory_left(root_), 3000U);
}

TEST_F(MemoryLimit, UnreadableMeansNone) { EXPECT_EQ(memory_left(root_), std::nullopt); }

}  // namespace
}  // namespace lockstep
