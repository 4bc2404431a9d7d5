#include "base/memory_node.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/error.hpp"

namespace lockstep {
namespace {

using Numbers = std::vector<int>;

TEST(MemoryNode, ReadsTheKernelsLists) {
  EXPECT_EQ(numbers_of_list("0"), Numbers{0});
  EXPECT_EQ(numbers_of_list("\t0-3,8,10-11\n"), (Numbers{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(numbers_of_list(""), Numbers{});
  EXPECT_EQ(numbers_of_list("\n"), Numbers{});
  EXPECT_EQ(numbers_of_list("65535"), Numbers{65'535});
}

TEST(MemoryNode, TakesNothingElseForAList) {
  for (const char* text : {"x",
                           "-",
                           ",",
                           "1-",
                           "-1",
                           "1,",
                           ",1",
                           "3-1",
                           "1--2",
                           "1-2-3",
                           "1 2",
                           "1;2",
                           "0x1",
                           "1.5",
                           "65536",
                           "0-4000000000",
                           "99999999999999999999",
                           "0-65535,0-65535",
                           "all",
                           "\xff"}) {
    EXPECT_EQ(numbers_of_list(text), std::nullopt) << text;
  }
  EXPECT_EQ(numbers_of_list(std::string_view("1\0", 2)), std::nullopt);
}

// A machine made of files.
class MemoryNodes : public testing::Test {
 protected:
  MemoryNodes() : root_(testing::TempDir() + "memory_node_" + std::to_string(::getpid())) {}
  ~MemoryNodes() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  // Node 2 has memory and no CPUs.
  void make_two_nodes() const {
    write("/sys/devices/system/node/online", "0-2\n");
    write("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    write("/sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    write("/sys/devices/system/node/node2/cpulist", "\n");
  }

  void allow(const std::string& thread, const std::string& cpus) const {
    write("/proc/self/task/" + thread + "/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + cpus + "\n");
  }

  std::string root_;
};

TEST_F(MemoryNodes, ARankBelongsWhereAllItsThreadsRun) {
  make_two_nodes();
  allow("70", "4-7");
  EXPECT_EQ(memory_node_of_process(root_), 1);
  allow("71", "12");
  EXPECT_EQ(memory_node_of_process(root_), 1);
  allow("72", "3-4");
  EXPECT_EQ(memory_node_of_process(root_), std::nullopt);
}

TEST_F(MemoryNodes, CpusThatAreNotThereDoNotCount) {
  make_two_nodes();
  allow("70", "8-9,100-127");
  EXPECT_EQ(memory_node_of_process(root_), 0);
}

TEST_F(MemoryNodes, WhatCannotBeReadIsUnknown) {
  EXPECT_EQ(memory_node_of_process(root_), std::nullopt);
  allow("70", "0");
  EXPECT_EQ(memory_node_of_process(root_), std::nullopt);
  make_two_nodes();
  EXPECT_EQ(memory_node_of_process(root_), 0);
  write("/sys/devices/system/node/node1/cpulist", "4-?\n");
  EXPECT_EQ(memory_node_of_process(root_), std::nullopt);
}

TEST(MemoryNode, MayBeSaid) {
  ::setenv("LOCKSTEP_MEMORY_NODE", "3", 1);
  EXPECT_EQ(memory_node_of_rank(0), 3);
  EXPECT_EQ(memory_node_of_rank(7), 3);
  ::setenv("LOCKSTEP_MEMORY_NODE", "0,0,1", 1);
  EXPECT_EQ(memory_node_of_rank(1), 0);
  EXPECT_EQ(memory_node_of_rank(2), 1);
  EXPECT_THROW(memory_node_of_rank(3), Error);
  for (const char* wrong : {"x", "1,", ",1", "-1", "1024", "0-1", "0 1", "0,1;"}) {
    ::setenv("LOCKSTEP_MEMORY_NODE", wrong, 1);
    EXPECT_THROW(memory_node_of_rank(0), Error) << wrong;
  }
  ::unsetenv("LOCKSTEP_MEMORY_NODE");
  EXPECT_EQ(memory_node_of_rank(0), memory_node_of_process());
}

TEST(MemoryNode, MemoryCanBeToldWhereToLie) {
  const std::size_t bytes = 4 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_FALSE(prefer_memory_node(memory, bytes, 1023));  // no machine has it
  EXPECT_FALSE(prefer_memory_node(memory, bytes, 1024));
  EXPECT_FALSE(prefer_memory_node(memory, bytes, -1));
  if (prefer_memory_node(memory, bytes, 0)) {  // a container may forbid it
    int mode = -1;
    unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
    EXPECT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, 1024, memory, MPOL_F_ADDR), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(nodes[0], 1UL);
  }
  ::munmap(memory, bytes);
}

}  // namespace
}  // namespace lockstep
