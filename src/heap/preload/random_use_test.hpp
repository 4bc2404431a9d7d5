// Random use of an allocator by several threads, against a model of what must hold: each block lies on the boundary
// that was asked for, is as large as was asked for and as it says itself, is in no hands but one, and keeps what its
// owner wrote until somebody frees it, on whatever thread. Meanwhile engines come and go, and children are forked.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizer_test.hpp"
#include "heap/preload/preload.h"

namespace lockstep::heap {

/// How many operations a test does, on all threads together.
inline std::size_t operations_to_do(std::size_t usually) {
  const char* set = std::getenv("LOCKSTEP_TEST_OPERATIONS");
  return set != nullptr ? std::strtoull(set, nullptr, 10) : usually;
}

/// Memory that blocks are served from.
class Region {
 public:
  using Classes = std::vector<lockstep_preload_class>;

  explicit Region(const lockstep_preload_library& library, const Classes& classes, int (*meant)() = nullptr,
                  std::size_t most_committed = SIZE_MAX)
      : library_(library), bytes_(library.room(classes.data(), classes.size())), left_(most_committed) {
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
    handle_ = library_.serve(&region, &why_not_);
  }
  ~Region() {
    retire();
    EXPECT_TRUE(released_) << "a block was lost";
    ::munmap(base_, bytes_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void retire() { library_.retire(std::exchange(handle_, -1)); }
  bool contains(const void* block) const { return block >= base_ && block < base_ + bytes_; }
  bool released() const { return released_; }
  int handle() const { return handle_; }
  const char* why_not() const { return why_not_; }
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

  const lockstep_preload_library& library_;
  std::size_t bytes_;
  std::size_t left_;
  std::size_t committed_ = 0;
  std::byte* base_ = nullptr;
  int handle_ = -1;
  const char* why_not_ = nullptr;
  std::atomic<bool> released_{false};
};

class RandomUse {
 public:
  explicit RandomUse(const lockstep_preload_library& library) : library_(library) {}
  virtual ~RandomUse() = default;
  RandomUse(const RandomUse&) = delete;
  RandomUse& operator=(const RandomUse&) = delete;

  void run(std::size_t operations, unsigned threads) {
    lockstep_preload_counts before{}, after{};
    library_.count(&before);
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; ++i) {
      running.emplace_back([this, i, each = operations / threads] { use(i + 1, each); });
    }
    for (std::thread& thread : running) thread.join();
    for (const Block& block : common_) let_go(block);
    common_.clear();
    region_.reset();
    library_.count(&after);
    EXPECT_GT(after.served, before.served);
    EXPECT_GT(after.missed, before.missed);
    EXPECT_EQ(after.in_use, before.in_use);
    EXPECT_GT(forks_, 0U);
  }

 protected:
  struct Block {
    unsigned char* data;
    std::size_t bytes;
    std::size_t usable = 0;
    std::uint64_t stamp = 0;
  };

  /// A block of so many bytes on such a boundary; `way`: any number, for allocators that have several ways.
  virtual void* take(std::size_t alignment, std::size_t bytes, unsigned way) = 0;
  virtual void give_back(void* block) = 0;
  virtual std::size_t bytes_of(void* block) = 0;
  /// The same values in a block of another size; nullptr: this allocator cannot do it, and the block is as it was.
  virtual void* resize(void* block, std::size_t bytes) = 0;
  /// In a forked child, with the parent's blocks: frees them all, and is served nothing. False: something was wrong.
  virtual bool use_in_child(const std::vector<Block>& blocks) = 0;

  static constexpr std::size_t kSizes[] = {4096, 5000, 8192, 20000, 65536, 70000};

 private:
  static constexpr std::size_t kAlignments[] = {16, 64, 64, 128, 4096};
  // Blocks of a pool begin at multiples of it, so no two of them can overlap without a mark of one in the other.
  static constexpr std::size_t kBetweenMarks = 128;
  static constexpr std::size_t kMostRetired = 8;

  void use(unsigned thread, std::size_t operations) {
    std::mt19937 random(thread);
    std::vector<Block> own;
    std::uint64_t stamp = std::uint64_t{thread} << 48;
    // The thread sanitizer has several times the memory of its own, which is made anew with each region and fork.
    const std::size_t between_regions = under_thread_sanitizer() ? 16 : 1;
    const std::size_t between_forks = under_thread_sanitizer() ? 4096 : 256;
    for (std::size_t i = 0; i < operations; ++i) {
      const auto choice = random() % 100;
      if (choice < 45) own.push_back(made(random, ++stamp));
      if (choice >= 45 && choice < 80 && !own.empty()) let_go(pick(own, random()));
      if (choice >= 80 && choice < 85 && !own.empty()) change(own[random() % own.size()], random, ++stamp);
      if (choice >= 85 && choice < 90 && !own.empty()) exchange(own, random());
      if (choice >= 90 && choice < 95 && !own.empty()) check(own[random() % own.size()]);
      if (choice == 95 && i % between_regions == 0) replace_region();
      if (i == operations / 2 || (choice == 96 && i % between_forks == 0)) fork_child(own);
      while (own.size() > 24) let_go(pick(own, random()));
    }
    for (const Block& block : own) let_go(block);
  }

  Block made(std::mt19937& random, std::uint64_t stamp) {
    const std::size_t bytes = kSizes[random() % std::size(kSizes)];
    const std::size_t alignment = kAlignments[random() % std::size(kAlignments)];
    Block block{.data = static_cast<unsigned char*>(take(alignment, bytes, random())), .bytes = bytes};
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % alignment, 0U);
    mark(block, stamp);
    return block;
  }

  // All that may be used is marked, to its last byte.
  void mark(Block& block, std::uint64_t stamp) {
    block.usable = bytes_of(block.data);
    ASSERT_GE(block.usable, block.bytes);
    block.stamp = stamp;
    for (std::size_t at = 0; at + sizeof stamp < block.usable; at += kBetweenMarks) {
      std::memcpy(block.data + at, &stamp, sizeof stamp);
    }
    block.data[block.usable - 1] = static_cast<unsigned char>(stamp);
  }

  static bool has_marks(const Block& block, std::size_t until) {
    for (std::size_t at = 0; at + sizeof block.stamp <= until; at += kBetweenMarks) {
      if (std::memcmp(block.data + at, &block.stamp, sizeof block.stamp) != 0) return false;
    }
    return true;
  }

  static bool is_whole(const Block& block) {
    return has_marks(block, block.usable - 1) &&
           block.data[block.usable - 1] == static_cast<unsigned char>(block.stamp);
  }

  void check(const Block& block) {
    ASSERT_TRUE(is_whole(block)) << "a block of " << block.bytes << " bytes was in two hands";
    ASSERT_EQ(bytes_of(block.data), block.usable);
  }

  void let_go(const Block& block) {
    check(block);
    give_back(block.data);
  }

  void change(Block& block, std::mt19937& random, std::uint64_t stamp) {
    check(block);
    const std::size_t bytes = kSizes[random() % std::size(kSizes)];
    void* const moved = resize(block.data, bytes);
    if (moved == nullptr) return;
    Block changed{.data = static_cast<unsigned char*>(moved), .bytes = bytes, .usable = bytes, .stamp = block.stamp};
    const std::size_t kept = std::min({bytes, block.bytes, block.usable - 1});
    ASSERT_TRUE(has_marks(changed, kept)) << "a block lost what it held when it was moved";
    mark(changed, stamp);
    block = changed;
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
    const std::lock_guard lock(mutex_);
    common_.push_back(mine);
    if (common_.size() < 16) return;
    own.push_back(common_.front());
    common_.erase(common_.begin());
  }

  // An engine goes and another comes. What is in use of the old one stays.
  void replace_region() {
    const std::lock_guard lock(mutex_);
    if (region_) region_->retire();
    std::erase_if(retired_, [](const auto& region) { return region->released(); });
    if (region_ && !region_->released()) retired_.push_back(std::move(region_));
    region_.reset();
    if (retired_.size() >= kMostRetired) return;
    const Region::Classes classes{{4096, 9}, {5000, 7}, {8192, 5}, {65536, 20}, {70000, 18}};
    region_ = std::make_unique<Region>(library_, classes);
    EXPECT_GE(region_->handle(), 0) << region_->why_not();
  }

  void fork_child(const std::vector<Block>& own) {
    ++forks_;
    const pid_t child = ::fork();
    if (child == 0) {
      bool fine = true;
      for (const Block& block : own) fine = fine && is_whole(block);
      ::_exit(fine && use_in_child(own) ? 0 : 1);
    }
    ASSERT_GT(child, 0);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }

  const lockstep_preload_library& library_;
  std::atomic<std::size_t> forks_{0};
  std::mutex mutex_;
  // Protected by mutex_.
  std::vector<Block> common_;
  std::unique_ptr<Region> region_;
  std::vector<std::unique_ptr<Region>> retired_;
};

}  // namespace lockstep::heap
