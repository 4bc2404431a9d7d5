#include "heap/shared_mapping.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>

#include "base/sanitizer_test.hpp"

namespace lockstep::heap {
namespace {

constexpr std::size_t kBytes = 1 << 16;

Fd memory_file() {
  Fd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(file.get(), kBytes), 0);
  return file;
}

Fd copy_of(const Fd& file) { return Fd(::dup(file.get())); }

bool in_child(const std::function<bool()>& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST(SharedMapping, is_shared_by_all_who_map_the_file) {
  const Fd file = memory_file();
  const SharedMapping one(copy_of(file), kBytes), other(copy_of(file), kBytes);
  std::strcpy(reinterpret_cast<char*>(one.base()), "hello");
  EXPECT_STREQ(reinterpret_cast<char*>(other.base()), "hello");
}

TEST(SharedMapping, is_a_copy_of_its_own_in_a_forked_child) {
  if (under_thread_sanitizer()) return;  // it does not follow a fork
  const Fd file = memory_file();
  const SharedMapping one(copy_of(file), kBytes), other(copy_of(file), kBytes);
  auto* text = reinterpret_cast<char*>(one.base());
  auto* peers = reinterpret_cast<char*>(other.base());
  std::strcpy(text, "the parent's");
  EXPECT_TRUE(in_child([&] {
    const bool read = std::strcmp(text, "the parent's") == 0;
    std::strcpy(text, "the child's");
    return read && std::strcmp(text, "the child's") == 0 && std::strcmp(peers, "the parent's") == 0;
  }));
  EXPECT_STREQ(text, "the parent's");
}

TEST(SharedMapping, has_addresses_at_which_large_pages_fit) {
  constexpr std::size_t kLargePage = 2 << 20;
  Fd file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 5 * kLargePage + 4096), 0);
  const SharedMapping whole(copy_of(file), 5 * kLargePage + 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(whole.base()) % kLargePage, 0U);
  const std::size_t offset = kLargePage + 3 * 4096;
  std::byte* const part = map_part(file.get(), offset, kLargePage, PROT_READ, "map a part");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part) % kLargePage, 3U * 4096);

  // Whether there are large pages or not, what is in the memory stays, and all see it.
  whole.base()[offset] = std::byte{7};
  EXPECT_TRUE(whole.take(whole.base() + kLargePage + 4096, 3 * kLargePage));
  EXPECT_EQ(part[0], std::byte{7});
  whole.base()[offset + 4096] = std::byte{8};
  EXPECT_EQ(part[4096], std::byte{8});
  EXPECT_EQ(::munmap(part, kLargePage), 0);
  EXPECT_EQ(whole.base()[5 * kLargePage + 4095], std::byte{0}) << "the end, which fills no large page";
}

TEST(SharedMapping, that_is_gone_leaves_nothing_in_a_forked_child) {
  if (under_thread_sanitizer()) return;
  std::byte* place = nullptr;
  { place = SharedMapping(memory_file(), kBytes).base(); }
  unsigned char state = 0;
  EXPECT_TRUE(in_child([&] { return ::mincore(place, 4096, &state) != 0; }));
}

TEST(SharedMapping, stays_private_in_the_child_of_a_child) {
  if (under_thread_sanitizer()) return;
  const SharedMapping mapping(memory_file(), kBytes);
  auto* text = reinterpret_cast<char*>(mapping.base());
  EXPECT_TRUE(in_child([&] {
    std::strcpy(text, "the child's");
    const bool inherited = in_child([&] {
      const bool read = std::strcmp(text, "the child's") == 0;
      std::strcpy(text, "the grandchild's");
      return read;
    });
    return inherited && std::strcmp(text, "the child's") == 0;
  }));
  EXPECT_STREQ(text, "");
}

}  // namespace
}  // namespace lockstep::heap
