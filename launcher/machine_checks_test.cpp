#include "launcher/machine_checks.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep::launcher {
namespace {

using Level = Finding::Level;
constexpr std::size_t kGigabyte = std::size_t{1} << 30;

TEST(MachineChecks, memory) {
  EXPECT_EQ(judge_memory(8 * kGigabyte, {}, {}).level, Level::good);
  EXPECT_EQ(judge_memory(8 * kGigabyte, 4 * kGigabyte, {}).level, Level::good);
  EXPECT_EQ(judge_memory(8 * kGigabyte, kGigabyte / 8, {}).level, Level::advice);
  const Finding limited = judge_memory(8 * kGigabyte, {}, 2 * kGigabyte);
  EXPECT_EQ(limited.level, Level::problem);
  EXPECT_EQ(limited.remedy, "ulimit -v unlimited");
  EXPECT_NE(limited.text.find("2.0 GB of address space"), std::string::npos);
}

TEST(MachineChecks, open_files) {
  EXPECT_EQ(judge_open_files(1024, 1024).level, Level::good);
  EXPECT_EQ(judge_open_files(256, 4096).remedy, "ulimit -n 4096");
  EXPECT_NE(judge_open_files(256, 256).remedy.find("limits.conf"), std::string::npos);
}

TEST(MachineChecks, huge_pages) {
  EXPECT_EQ(judge_huge_pages("[always] within_size advise never deny force").level, Level::good);
  EXPECT_EQ(judge_huge_pages("always within_size advise [never] deny force").level, Level::absent);
  EXPECT_NE(judge_huge_pages("always within_size advise [never] deny force").remedy.find("tee"), std::string::npos);
  EXPECT_EQ(judge_huge_pages("").level, Level::absent);
  EXPECT_EQ(judge_huge_pages("]odd[").level, Level::absent);
}

TEST(MachineChecks, reading_of_peers) {
  EXPECT_EQ(judge_reading_of_peers(0, 1).level, Level::good);
  EXPECT_EQ(judge_reading_of_peers(EPERM, 1).remedy, "sudo sysctl kernel.yama.ptrace_scope=0");
  EXPECT_NE(judge_reading_of_peers(EPERM, {}).remedy.find("SYS_PTRACE"), std::string::npos);
  EXPECT_NE(judge_reading_of_peers(ENOSYS, 0).remedy.find("SYS_PTRACE"), std::string::npos);
}

TEST(MachineChecks, every_trouble_comes_with_its_remedy) {
  for (const Finding& finding : check_machine()) {
    EXPECT_FALSE(finding.text.empty()) << finding.name;
    EXPECT_TRUE(finding.level == Level::good || finding.level == Level::absent || !finding.remedy.empty())
        << finding.name;
  }
}

}  // namespace
}  // namespace lockstep::launcher
