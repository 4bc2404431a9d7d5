#include "heap/preload/pools.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/sanitizer_test.hpp"
#include "heap/preload/random_use_test.hpp"

namespace lockstep::heap {
namespace {

// The pools as the engine knows them, linked instead of preloaded.
constexpr lockstep_preload_library kLinked{.version = LOCKSTEP_PRELOAD_VERSION,
                                           .room = &pools_room,
                                           .serve = &pools_serve,
                                           .retire = &pools_retire,
                                           .count = &pools_count};

class LinkedRegion : public Region {
 public:
  template <class... Options>
  explicit LinkedRegion(const Classes& classes, Options... options) : Region(kLinked, classes, options...) {}
};

TEST(Pools, serve_exactly_the_sizes_they_were_made_for) {
  LinkedRegion region({{5000, 2}, {1 << 20, 2}});
  EXPECT_EQ(pools_take(64, 4999), nullptr);
  EXPECT_EQ(pools_take(64, 5001), nullptr);
  void* small = pools_take(64, 5000);
  void* large = pools_take(64, 1 << 20);
  EXPECT_TRUE(region.contains(small));
  EXPECT_TRUE(region.contains(large));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 128, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % 4096, 0U);
  EXPECT_EQ(pools_bytes_of(small), 5120U);
  EXPECT_EQ(pools_bytes_of(large), 1U << 20);
  EXPECT_TRUE(pools_give_back(small));
  EXPECT_TRUE(pools_give_back(large));
}

TEST(Pools, are_passive_without_a_region) {
  EXPECT_FALSE(pools_may_have(5000));
  int here = 0;
  EXPECT_FALSE(pools_may_hold(&here));
  EXPECT_EQ(pools_take(64, 5000), nullptr);
  EXPECT_FALSE(pools_give_back(&here));
  EXPECT_EQ(pools_bytes_of(&here), 0U);
}

TEST(Pools, use_a_block_again_that_was_given_back) {
  LinkedRegion region({{8192, 4}});
  void* first = pools_take(64, 8192);
  EXPECT_TRUE(pools_give_back(first));
  EXPECT_EQ(pools_take(64, 8192), first);
  EXPECT_EQ(region.committed(), 8192U);
  EXPECT_TRUE(pools_give_back(first));
}

TEST(Pools, leave_the_rest_to_the_normal_heap_when_full) {
  LinkedRegion region({{8192, 3}});
  std::set<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(pools_take(64, 8192));
  EXPECT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks.count(nullptr), 0U);
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  for (void* block : blocks) EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, do_not_serve_what_they_cannot_align) {
  LinkedRegion region({{5000, 1}, {1 << 20, 1}});
  EXPECT_EQ(pools_take(256, 5000), nullptr);
  EXPECT_EQ(pools_take(8192, 1 << 20), nullptr);
  void* paged = pools_take(4096, 1 << 20);
  EXPECT_TRUE(region.contains(paged));
  EXPECT_TRUE(pools_give_back(paged));
}

TEST(Pools, go_on_with_what_they_have_when_memory_is_refused) {
  LinkedRegion region({{8192, 3}, {65536, 1}}, nullptr, 8192);
  void* block = pools_take(64, 8192);
  EXPECT_TRUE(region.contains(block));
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  EXPECT_EQ(pools_take(64, 65536), nullptr);
  EXPECT_TRUE(pools_give_back(block));
  EXPECT_EQ(pools_take(64, 8192), block);
  EXPECT_TRUE(pools_give_back(block));
}

thread_local int answer = -1;

TEST(Pools, serve_only_what_is_meant) {
  LinkedRegion region({{8192, 1}}, [] { return answer; });
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  answer = 0;
  void* block = pools_take(64, 8192);
  answer = -1;
  EXPECT_TRUE(region.contains(block));
  EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, keep_a_region_until_its_last_block_is_back) {
  LinkedRegion region({{8192, 2}});
  void* block = pools_take(64, 8192);
  region.retire();
  EXPECT_FALSE(region.released());
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  EXPECT_EQ(pools_bytes_of(block), 8192U);
  std::thread([&] { EXPECT_TRUE(pools_give_back(block)); }).join();
  EXPECT_TRUE(region.released());
  EXPECT_FALSE(pools_may_hold(block));
}

TEST(Pools, serve_from_the_next_region_when_one_is_full) {
  LinkedRegion first({{8192, 1}});
  LinkedRegion second({{8192, 1}, {16384, 1}});
  void* blocks[] = {pools_take(64, 8192), pools_take(64, 8192), pools_take(64, 16384)};
  EXPECT_TRUE(first.contains(blocks[0]));
  EXPECT_TRUE(second.contains(blocks[1]));
  EXPECT_TRUE(second.contains(blocks[2]));
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  for (void* block : blocks) EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, have_no_end_of_regions_as_long_as_blocks_come_back) {
  for (int cycle = 0; cycle < 300; ++cycle) {
    LinkedRegion region({{8192, 2}, {70000, 1}});
    ASSERT_GE(region.handle(), 0) << "cycle " << cycle;
    ASSERT_TRUE(pools_give_back(pools_take(64, 8192)));
  }
}

TEST(Pools, refuse_sizes_that_do_not_fit_the_region) {
  const lockstep_preload_class classes[] = {{.bytes = 8192, .count = 4}};
  lockstep_preload_region region{.base = reinterpret_cast<void*>(std::uintptr_t{1} << 30),
                                 .bytes = 3 * 8192,
                                 .classes = classes,
                                 .class_count = 1,
                                 .commit = nullptr,
                                 .meant = nullptr,
                                 .release = nullptr,
                                 .context = nullptr};
  const char* why_not = nullptr;
  EXPECT_EQ(pools_serve(&region, &why_not), -1);
  EXPECT_NE(why_not, nullptr);
}

TEST(Pools, are_harmless_in_a_forked_child) {
  if (under_thread_sanitizer()) return;  // it does not follow a fork
  LinkedRegion region({{8192, 2}});
  auto* block = static_cast<char*>(pools_take(64, 8192));
  std::strcpy(block, "the parent's");
  const pid_t child = ::fork();
  if (child == 0) {
    bool fine = pools_take(64, 8192) == nullptr && pools_bytes_of(block) == 8192;
    for (int i = 0; i < 3; ++i) fine = fine && pools_give_back(block);  // as often as it likes
    const lockstep_preload_class classes[] = {{.bytes = 8192, .count = 1}};
    lockstep_preload_region more{};
    more.base = block;
    more.bytes = 8192;
    more.classes = classes;
    more.class_count = 1;
    fine = fine && pools_serve(&more, nullptr) == -1;
    pools_retire(region.handle());
    ::_exit(fine && std::strcmp(block, "the parent's") == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  void* other = pools_take(64, 8192);
  EXPECT_TRUE(region.contains(other));
  EXPECT_NE(other, block);
  EXPECT_TRUE(pools_give_back(other));
  EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, leave_alignments_that_make_no_sense_to_the_next_allocator) {
  LinkedRegion region({{8192, 1}});
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{24}, std::size_t{96}}) {
    EXPECT_EQ(pools_take(alignment, 8192), nullptr) << alignment;
  }
}

// Blocks that the pools do not have come from the normal heap.
class LinkedUse : public RandomUse {
 public:
  LinkedUse() : RandomUse(kLinked) {}

 private:
  void* take(std::size_t alignment, std::size_t bytes, unsigned) override {
    if (void* block = pools_take(alignment, bytes); block != nullptr) return block;
    void* block = nullptr;
    EXPECT_EQ(::posix_memalign(&block, alignment, bytes), 0);
    return block;
  }
  void give_back(void* block) override {
    if (!pools_give_back(block)) std::free(block);
  }
  std::size_t bytes_of(void* block) override {
    const std::size_t bytes = pools_bytes_of(block);
    return bytes != 0 ? bytes : ::malloc_usable_size(block);
  }
  void* resize(void*, std::size_t) override { return nullptr; }
  // Without the normal heap: that of a sanitizer may be locked for ever in a child.
  bool use_in_child(const std::vector<Block>& blocks) override {
    bool fine = true;
    for (const Block& block : blocks) {
      const std::size_t bytes = pools_bytes_of(block.data);
      fine = fine && (bytes == 0 || bytes == block.usable) && pools_give_back(block.data) == (bytes != 0);
    }
    for (const std::size_t bytes : kSizes) fine = fine && pools_take(64, bytes) == nullptr;
    return fine;
  }
};

TEST(Pools, survive_random_use_by_several_threads) {
  LinkedUse().run(operations_to_do(under_thread_sanitizer() ? 40'000 : 160'000), 4);
}

}  // namespace
}  // namespace lockstep::heap
