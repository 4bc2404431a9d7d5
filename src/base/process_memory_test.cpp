#include "base/process_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace lockstep {
namespace {

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

TEST(ProcessMemory, WhatWasWrittenIsRead) {
  const std::uint64_t from = 42;
  std::uint64_t middle = 0, to = 0;
  EXPECT_EQ(write_process(getpid(), address_of(&middle), std::as_bytes(std::span(&from, 1))), Reach::done);
  EXPECT_EQ(read_process(getpid(), address_of(&middle), std::as_writable_bytes(std::span(&to, 1))), Reach::done);
  EXPECT_EQ(to, 42U);
  EXPECT_EQ(read_process(getpid(), 0, {}), Reach::done) << "nothing was asked for";
}

TEST(ProcessMemory, TellsWhereMemoryEnds) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* two = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(two, MAP_FAILED);
  munmap(static_cast<std::byte*>(two) + page, page);
  std::array<std::byte, 64> bytes{};
  EXPECT_EQ(read_process(getpid(), address_of(two) + page - 64, bytes), Reach::done);
  EXPECT_EQ(read_process(getpid(), address_of(two) + page - 32, bytes), Reach::no_memory);
  munmap(two, page);
}

TEST(ProcessMemory, TellsThatAProcessIsGone) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  std::uint64_t word = 0;
  EXPECT_EQ(read_process(child, address_of(&word), std::as_writable_bytes(std::span(&word, 1))), Reach::gone);
}

}  // namespace
}  // namespace lockstep
