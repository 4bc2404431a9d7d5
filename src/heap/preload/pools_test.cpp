#include "heap/preload/pools.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizer_test.hpp"

namespace lockstep::heap {
namespace {

using Classes = std::vector<lockstep_preload_class>;

// Memory to serve from, and how the pool uses it.
class Region {
 public:
  explicit Region(const Classes& classes, int (*meant)() = nullptr, std::size_t most_committed = SIZE_MAX)
      : bytes_(pools_room(classes.data(), classes.size())), left_(most_committed) {
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const lockstep_preload_region region{.base = base_,
                                         .bytes = bytes_,
                                         .classes = classes.data(),
                                         .class_count = classes.size(),
                                         .commit = &commit,
                                         .meant = meant,
                                         .release = [](void* self) { static_cast<Region*>(self)->released_ = true; },
                                         .context = this};
    handle_ = pools_serve(&region, &why_not_);
  }
  ~Region() {
    retire();
    EXPECT_TRUE(released_) << "a block was lost";
    ::munmap(base_, bytes_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void retire() { pools_retire(std::exchange(handle_, -1)); }
  bool contains(const void* block) const { return block >= base_ && block < base_ + bytes_; }
  bool released() const { return released_; }
  int handle() const { return handle_; }
  std::size_t committed() const { return committed_; }

 private:
  static int commit(void* context, void* first, std::size_t bytes) {
    auto& self = *static_cast<Region*>(context);
    EXPECT_TRUE(self.contains(first));
    if (self.left_ < bytes) return 0;
    self.left_ -= bytes;
    self.committed_ += bytes;
    return 1;
  }

  std::size_t bytes_;
  std::size_t left_;
  std::size_t committed_ = 0;
  std::byte* base_ = nullptr;
  int handle_ = -1;
  const char* why_not_ = nullptr;
  std::atomic<bool> released_{false};
};

TEST(Pools, serve_exactly_the_sizes_they_were_made_for) {
  Region region({{5000, 2}, {1 << 20, 2}});
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
  Region region({{8192, 4}});
  void* first = pools_take(64, 8192);
  EXPECT_TRUE(pools_give_back(first));
  EXPECT_EQ(pools_take(64, 8192), first);
  EXPECT_EQ(region.committed(), 8192U);
  EXPECT_TRUE(pools_give_back(first));
}

TEST(Pools, leave_the_rest_to_the_normal_heap_when_full) {
  Region region({{8192, 3}});
  std::set<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(pools_take(64, 8192));
  EXPECT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks.count(nullptr), 0U);
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  for (void* block : blocks) EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, do_not_serve_what_they_cannot_align) {
  Region region({{5000, 1}, {1 << 20, 1}});
  EXPECT_EQ(pools_take(256, 5000), nullptr);
  EXPECT_EQ(pools_take(8192, 1 << 20), nullptr);
  void* paged = pools_take(4096, 1 << 20);
  EXPECT_TRUE(region.contains(paged));
  EXPECT_TRUE(pools_give_back(paged));
}

TEST(Pools, go_on_with_what_they_have_when_memory_is_refused) {
  Region region({{8192, 3}, {65536, 1}}, nullptr, 8192);
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
  Region region({{8192, 1}}, [] { return answer; });
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  answer = 0;
  void* block = pools_take(64, 8192);
  answer = -1;
  EXPECT_TRUE(region.contains(block));
  EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, keep_a_region_until_its_last_block_is_back) {
  Region region({{8192, 2}});
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
  Region first({{8192, 1}});
  Region second({{8192, 1}, {16384, 1}});
  void* blocks[] = {pools_take(64, 8192), pools_take(64, 8192), pools_take(64, 16384)};
  EXPECT_TRUE(first.contains(blocks[0]));
  EXPECT_TRUE(second.contains(blocks[1]));
  EXPECT_TRUE(second.contains(blocks[2]));
  EXPECT_EQ(pools_take(64, 8192), nullptr);
  for (void* block : blocks) EXPECT_TRUE(pools_give_back(block));
}

TEST(Pools, have_no_end_of_regions_as_long_as_blocks_come_back) {
  for (int cycle = 0; cycle < 300; ++cycle) {
    Region region({{8192, 2}, {70000, 1}});
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
  Region region({{8192, 2}});
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

// What a program could do, on several threads: every block is stamped by its owner, is freed by any thread, and is what
// it was when it is freed. Blocks that the pools do not have come from the normal heap.
class RandomUse {
 public:
  explicit RandomUse(std::size_t operations) : operations_(operations) {}

  void run(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Block> own;
    for (std::size_t i = 0; i < operations_; ++i) {
      const auto choice = random() % 100;
      if (choice < 45) own.push_back(take(kSizes[random() % std::size(kSizes)], random()));
      if (choice >= 45 && choice < 85 && !own.empty()) give_back(pick(own, random()));
      if (choice >= 85 && choice < 90 && !own.empty()) exchange(own, random());
      if (choice >= 90 && choice < 95 && !own.empty()) check(own[random() % own.size()]);
      if (choice == 95) replace_region();
      if (choice == 96 && i % 64 == 0 && !under_thread_sanitizer()) fork_child(own);
      while (own.size() > 24) give_back(pick(own, random()));
    }
    for (const Block& block : own) give_back(block);
  }

  void finish() {
    for (const Block& block : common_) give_back(block);
    common_.clear();
    region_.reset();
    EXPECT_GT(served_, 0U);
    EXPECT_GT(refused_, 0U);
  }

 private:
  static constexpr std::size_t kSizes[] = {4096, 5000, 8192, 20000, 65536, 70000};
  struct Block {
    unsigned char* data;
    std::size_t bytes;
    unsigned char stamp;
    bool pooled;
  };

  // The ends are enough to find a block that is in two hands.
  static void stamp(const Block& block) {
    std::memset(block.data, block.stamp, 64);
    std::memset(block.data + block.bytes - 64, block.stamp, 64);
  }
  static void check(const Block& block) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{63}, block.bytes - 64, block.bytes - 1}) {
      ASSERT_EQ(block.data[at], block.stamp);
    }
    EXPECT_EQ(pools_bytes_of(block.data) != 0, block.pooled);
  }

  Block take(std::size_t bytes, unsigned long stamp_with) {
    Block block{static_cast<unsigned char*>(pools_take(64, bytes)), bytes, static_cast<unsigned char>(stamp_with),
                true};
    if (block.data == nullptr) {
      block.pooled = false;
      block.data = static_cast<unsigned char*>(std::malloc(bytes));
      ++refused_;
    } else {
      ++served_;
    }
    stamp(block);
    return block;
  }

  static void give_back(const Block& block) {
    check(block);
    EXPECT_EQ(pools_give_back(block.data), block.pooled);
    if (!block.pooled) std::free(block.data);
  }

  static Block pick(std::vector<Block>& own, unsigned long number) {
    std::swap(own[number % own.size()], own.back());
    const Block block = own.back();
    own.pop_back();
    return block;
  }

  // Another thread frees it.
  void exchange(std::vector<Block>& own, unsigned long number) {
    const Block mine = pick(own, number);
    std::lock_guard lock(mutex_);
    common_.push_back(mine);
    if (common_.size() < 16) return;
    own.push_back(common_.front());
    common_.erase(common_.begin());
  }

  // An engine goes and another comes. What is in use of the old one stays.
  void replace_region() {
    std::lock_guard lock(mutex_);
    if (region_) region_->retire();
    std::erase_if(retired_, [](const auto& region) { return region->released(); });
    if (region_ && !region_->released()) retired_.push_back(std::move(region_));
    region_.reset();
    if (retired_.size() < 8) {
      region_ = std::make_unique<Region>(Classes{{4096, 9}, {5000, 7}, {8192, 5}, {65536, 3}, {70000, 2}});
    }
  }

  static void fork_child(const std::vector<Block>& own) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool fine = pools_take(64, 4096) == nullptr;
      for (const Block& block : own) fine = fine && pools_give_back(block.data) == block.pooled;
      ::_exit(fine ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }

  std::size_t operations_;
  std::atomic<std::size_t> served_{0}, refused_{0};
  std::mutex mutex_;
  // Protected by mutex_.
  std::vector<Block> common_;
  std::unique_ptr<Region> region_;
  std::vector<std::unique_ptr<Region>> retired_;
};

TEST(Pools, survive_random_use_by_several_threads) {
  constexpr unsigned kThreads = 4;
  const bool full = std::getenv("LOCKSTEP_TEST_FULL") != nullptr;
  RandomUse use(full ? 10'000'000 / kThreads : 40'000);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { use.run(i + 1); });
  for (auto& thread : threads) thread.join();
  use.finish();
}

}  // namespace
}  // namespace lockstep::heap
