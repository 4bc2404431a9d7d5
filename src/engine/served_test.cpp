#include "engine/served.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "engine/world_test.hpp"
#include "heap/preload/pools.h"

namespace lockstep::engine {
namespace {

const lockstep_preload_library kLibrary{.version = LOCKSTEP_PRELOAD_VERSION,
                                        .room = pools_room,
                                        .serve = pools_serve,
                                        .retire = pools_retire,
                                        .count = pools_count};

std::uint64_t regions() {
  lockstep_preload_counts counts{};
  pools_count(&counts);
  return counts.regions;
}

TEST(ServedAllocations, lie_where_peers_find_them) {
  auto ranks = make_world(Over::shm, 2);
  transport::SharedMemory& shared = *ranks[1]->shared();
  ServedAllocations served(&kLibrary, &shared, 1);
  ASSERT_TRUE(served.serve({8192, 1 << 20, 8192}, nullptr));
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pools_take(64, 8192));
  blocks.push_back(pools_take(64, 1 << 20));
  for (void* block : blocks) {
    const transport::Place place = shared.place_of(block, 8192);
    ASSERT_NE(place, transport::kNowhere);
    std::strcpy(static_cast<char*>(block), "born");
    EXPECT_STREQ(reinterpret_cast<char*>(ranks[0]->shared()->at(1, place)), "born");
  }
  EXPECT_EQ(pools_take(64, 8192), nullptr);  // two of each
  for (void* block : blocks) pools_give_back(block);
}

TEST(ServedAllocations, outlive_the_engine_and_then_give_back_its_memory) {
  auto ranks = make_world(Over::shm, 2);
  const std::weak_ptr<const void> mapping = ranks[0]->shared()->mapping();
  auto served = std::make_unique<ServedAllocations>(&kLibrary, ranks[0]->shared(), 0);
  ASSERT_TRUE(served->serve({8192}, nullptr));
  auto* block = static_cast<char*>(pools_take(64, 8192));
  served.reset();
  ranks.clear();
  std::strcpy(block, "still there");
  EXPECT_FALSE(mapping.expired());
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  pools_give_back(block);
  EXPECT_TRUE(mapping.expired());
  EXPECT_EQ(regions(), 0U);
}

TEST(ServedAllocations, leave_half_of_a_small_arena_to_the_engine) {
  auto ranks = make_world(Over::shm, 2, /*arena_bytes=*/4 << 20);
  ServedAllocations served(&kLibrary, ranks[0]->shared(), 0);
  ASSERT_TRUE(served.serve({1 << 20, 3 << 20, 8192}, nullptr));
  EXPECT_EQ(pools_take(64, 3 << 20), nullptr);
  void* blocks[] = {pools_take(64, 1 << 20), pools_take(64, 8192)};
  EXPECT_NE(blocks[0], nullptr);
  EXPECT_NE(blocks[1], nullptr);
  EXPECT_EQ(pools_take(64, 1 << 20), nullptr);
  void* rest = ranks[0]->shared()->allocate(2 << 20);
  EXPECT_NE(rest, nullptr);
  for (void* block : blocks) pools_give_back(block);
}

TEST(ServedAllocations, are_not_there_without_a_library_or_shared_memory) {
  auto ranks = make_world(Over::shm, 2);
  EXPECT_FALSE(ServedAllocations(nullptr, ranks[0]->shared(), 1).serve({8192}, nullptr));
  EXPECT_FALSE(ServedAllocations(&kLibrary, nullptr, 1).serve({8192}, nullptr));
  EXPECT_FALSE(ServedAllocations(&kLibrary, ranks[0]->shared(), 1).serve({4, 4095}, nullptr));
  EXPECT_EQ(regions(), 0U);
}

}  // namespace
}  // namespace lockstep::engine
