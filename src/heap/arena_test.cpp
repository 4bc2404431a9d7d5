#include "heap/arena.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "lockstep/error.hpp"

namespace lockstep::heap {
namespace {

TEST(Arena, AlignsBlocksAndRefusesWhatDoesNotFit) {
  std::vector<std::byte> memory(1 << 20);
  Arena arena(memory.data(), memory.size());
  auto* small = arena.allocate(1);
  EXPECT_EQ((static_cast<std::byte*>(small) - memory.data()) % 128, 0);
  auto* large = arena.allocate(100'000);
  EXPECT_EQ((static_cast<std::byte*>(large) - memory.data()) % 4096, 0);
  EXPECT_EQ(arena.allocate(2 << 20), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX), nullptr);
  EXPECT_NE(arena.allocate(0), nullptr);
}

TEST(Arena, CommitsMemoryOnceAndIsFullWhenThatIsRefused) {
  std::vector<std::byte> memory(1 << 20);
  std::size_t committed = 0, limit = 256 << 10;
  Arena arena(memory.data(), memory.size(), [&](std::byte*, std::size_t bytes) {
    if (committed + bytes > limit) return false;
    committed += bytes;
    return true;
  });
  void* first = arena.allocate(200'000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(committed, 256U << 10);
  EXPECT_EQ(arena.allocate(300'000), nullptr) << "the machine refuses";
  arena.deallocate(first);
  EXPECT_EQ(arena.allocate(200'000), first) << "what was committed is used again";
  EXPECT_EQ(committed, 256U << 10);
}

TEST(Arena, NamesADoubleFree) {
  std::vector<std::byte> memory(1 << 16);
  Arena arena(memory.data(), memory.size());
  void* block = arena.allocate(100);
  arena.deallocate(block);
  EXPECT_THROW(arena.deallocate(block), Error);
  EXPECT_THROW(arena.deallocate(memory.data() + 64), Error);
  EXPECT_THROW(arena.deallocate(&arena), Error);
}

TEST(Arena, RandomUseNeverOverlapsAndEndsWithOneGap) {
  std::vector<std::byte> memory(1 << 20);
  Arena arena(memory.data(), memory.size());
  std::mt19937 random(7);
  struct Block {
    std::byte* address;
    std::size_t bytes;
    std::byte mark;
  };
  std::vector<Block> blocks;
  auto free_one = [&](std::size_t index) {
    const auto& [address, bytes, mark] = blocks[index];
    ASSERT_TRUE(bytes == 0 || (*address == mark && std::memcmp(address, address + 1, bytes - 1) == 0));
    arena.deallocate(blocks[index].address);
    blocks[index] = blocks.back();
    blocks.pop_back();
  };
  for (int round = 0; round < 20'000; ++round) {
    if (blocks.empty() || random() % 2 == 0) {
      const std::size_t bytes = random() % (random() % 10 == 0 ? 100'000 : 2'000);
      auto* address = static_cast<std::byte*>(arena.allocate(bytes));
      if (address == nullptr) continue;
      const auto mark = static_cast<std::byte>(round);
      std::memset(address, static_cast<int>(mark), bytes);
      blocks.push_back({address, bytes, mark});
    } else {
      free_one(random() % blocks.size());
    }
  }
  while (!blocks.empty()) free_one(0);
  EXPECT_EQ(arena.bytes_in_use(), 0U);
  EXPECT_NE(arena.allocate(memory.size()), nullptr);
}

}  // namespace
}  // namespace lockstep::heap
