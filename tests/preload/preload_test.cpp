// The library that `lockstep run` preloads, in a program that has it in LD_PRELOAD: what a program asks of an allocator
// comes out as from any other, while blocks of the served sizes come from the region.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "heap/preload/random_use_test.hpp"
#include "heap/preloaded.hpp"

namespace lockstep::heap {
namespace {

const lockstep_preload_library& preloaded() {
  const lockstep_preload_library* library = find_preloaded();
  if (library == nullptr) {
    ADD_FAILURE() << "liblockstep_preload.so is not in LD_PRELOAD";
    std::abort();
  }
  return *library;
}

// The compiler knows what the functions promise, and leaves out calls whose results it need not see.
template <class Value>
Value seen(Value value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

void* aligned_block(std::size_t alignment, std::size_t bytes) {
  void* block = nullptr;
  EXPECT_EQ(::posix_memalign(&block, alignment, bytes), 0);
  return seen(block);
}

class PreloadedUse : public RandomUse {
 public:
  PreloadedUse() : RandomUse(preloaded()) {}

 private:
  void* take(std::size_t alignment, std::size_t bytes, unsigned way) override {
    if (alignment > 16) way %= 3;  // the others know no alignment
    switch (way % 6) {
      case 0:
        return aligned_block(alignment, bytes);
      case 1:
        return seen(::aligned_alloc(alignment, bytes));
      case 2:
        return seen(::memalign(alignment, bytes));
      case 3:
        return zeroed(bytes);
      case 4:
        return seen(::realloc(nullptr, bytes));
      default:
        return seen(std::malloc(bytes));
    }
  }
  void give_back(void* block) override { std::free(seen(block)); }
  std::size_t bytes_of(void* block) override { return ::malloc_usable_size(seen(block)); }
  void* resize(void* block, std::size_t bytes) override {
    void* const moved = bytes % 3 == 0 ? ::realloc(seen(block), bytes) : ::reallocarray(seen(block), bytes / 4, 4);
    EXPECT_NE(moved, nullptr);
    return seen(moved);
  }
  bool use_in_child(const std::vector<Block>& blocks) override {
    lockstep_preload_counts before{}, after{};
    preloaded().count(&before);
    bool fine = true;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      void* block = blocks[i].data;
      fine = fine && bytes_of(block) == blocks[i].usable;
      if (i % 2 == 0) block = resize(block, kSizes[i % std::size(kSizes)]);
      give_back(block);
    }
    for (const std::size_t bytes : kSizes) give_back(aligned_block(64, bytes));
    preloaded().count(&after);
    return fine && after.served == before.served;
  }

  static void* zeroed(std::size_t bytes) {
    auto* block = static_cast<unsigned char*>(seen(std::calloc(1, bytes)));
    for (std::size_t at = 0; at < bytes; at += 64) EXPECT_EQ(block[at], 0U);
    return block;
  }
};

TEST(Preload, survives_random_use_by_several_threads) { PreloadedUse().run(operations_to_do(160'000), 4); }

TEST(Preload, serves_by_every_function_that_aligns) {
  Region region(preloaded(), {{8192, 3}});
  void* blocks[] = {aligned_block(64, 8192), seen(::aligned_alloc(64, 8192)), seen(::memalign(64, 8192))};
  for (void* block : blocks) {
    EXPECT_TRUE(region.contains(block));
    EXPECT_EQ(::malloc_usable_size(block), 8192U);
    std::free(block);
  }
}

TEST(Preload, refuses_alignments_as_the_next_allocator_does) {
  Region region(preloaded(), {{8192, 1}});
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{4}, std::size_t{24}}) {
    void* block = nullptr;
    EXPECT_EQ(::posix_memalign(&block, seen(alignment), 8192), EINVAL) << alignment;
    EXPECT_EQ(block, nullptr);
  }
}

TEST(Preload, moves_a_block_out_when_its_size_changes) {
  Region region(preloaded(), {{8192, 1}});
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{8192}, std::size_t{50'000}}) {
    auto* block = static_cast<char*>(aligned_block(64, 8192));
    ASSERT_TRUE(region.contains(block));
    std::memset(block, 7, 8192);
    auto* moved = static_cast<char*>(seen(::realloc(seen(block), bytes)));
    EXPECT_FALSE(region.contains(moved));
    EXPECT_EQ(moved[0], 7);
    EXPECT_EQ(moved[std::min<std::size_t>(bytes, 8192) - 1], 7);
    std::free(moved);
  }
  void* block = aligned_block(64, 8192);
  ASSERT_TRUE(region.contains(block));
  EXPECT_EQ(::realloc(seen(block), seen(std::size_t{0})), nullptr);
  EXPECT_EQ(aligned_block(64, 8192), block) << "it was not given back";
  std::free(block);
}

}  // namespace
}  // namespace lockstep::heap
