#include "transport/tcp/near_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "lockstep/error.hpp"

namespace lockstep::transport::tcp {
namespace {

using Bytes = std::vector<std::byte>;

Hello own_hello() {
  return {.process = static_cast<std::uint64_t>(::getpid()), .token = token_of_process(), .probe = probe_of_process()};
}

Bytes ascending(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

TEST(NearMemory, IsTriedOutBeforeItIsUsed) {
  EXPECT_TRUE(is_in_reach(own_hello()));
  Hello other = own_hello();
  other.token ^= 1;
  EXPECT_FALSE(is_in_reach(other));
  other = own_hello();
  other.probe = 8;
  EXPECT_FALSE(is_in_reach(other));
}

TEST(NearMemory, AMessageIsReadWhereItLies) {
  Lendings lendings;
  Bytes message = ascending(300'001), there(message.size());
  const Whereabouts where = lendings.lend(1, 7, 0, message);
  EXPECT_TRUE(lendings.has(7));
  EXPECT_FALSE(lendings.has(8));
  ASSERT_TRUE(fetch(own_hello(), where, there));
  EXPECT_EQ(there, message);
  lendings.note_fetched(2, where.number);  // it was not lent to this one
  EXPECT_TRUE(lendings.has(7));
  lendings.note_fetched(1, where.number);
  EXPECT_FALSE(lendings.has(7));
  EXPECT_FALSE(fetch(own_hello(), where, there));  // its slip is cleared
}

TEST(NearMemory, WhatItsOwnerChangesAfterwardsIsReadAsItWas) {
  Lendings lendings;
  const Bytes message = ascending(70'000);
  Bytes there(message.size());
  auto* own = static_cast<std::byte*>(
      ::mmap(nullptr, message.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::copy(message.begin(), message.end(), own);
  const Whereabouts where = lendings.lend(1, 7, 0, {own, message.size()});
  lendings.give_back(7);
  own[69'999] = std::byte{0xFF};
  ASSERT_TRUE(fetch(own_hello(), where, there));
  EXPECT_EQ(there, message);
  ::munmap(own, message.size());  // nor need it be there any more
  std::fill(there.begin(), there.end(), std::byte{});
  ASSERT_TRUE(fetch(own_hello(), where, there));
  EXPECT_EQ(there, message);
}

TEST(NearMemory, WhatIsAbandonedOrWasLentToALostRankIsGone) {
  Lendings lendings;
  Bytes message = ascending(20'000), there(message.size());
  const Whereabouts abandoned = lendings.lend(1, 7, 0, message), lost = lendings.lend(2, 8, 0, message);
  lendings.abandon(7);
  lendings.forget(2);
  EXPECT_FALSE(lendings.has(7) || lendings.has(8));
  EXPECT_FALSE(fetch(own_hello(), abandoned, there));
  EXPECT_FALSE(fetch(own_hello(), lost, there));
  lendings.note_fetched(1, abandoned.number);  // may come late
}

TEST(NearMemory, AProcessThatIsGoneHasNothing) {
  Lendings lendings;
  Bytes message = ascending(20'000), there(message.size());
  const Whereabouts where = lendings.lend(1, 7, 0, message);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Hello gone = own_hello();
  gone.process = static_cast<std::uint64_t>(child);
  EXPECT_FALSE(fetch(gone, where, there));
}

// It has come by the id of one that is gone.
TEST(NearMemory, AnotherProcessUnderThatIdIsNotTakenForTheSender) {
  Lendings lendings;
  Bytes message = ascending(20'000), there(message.size());
  const Whereabouts where = lendings.lend(1, 7, 0, message);
  Hello other = own_hello();
  other.token ^= 1;
  EXPECT_FALSE(fetch(other, where, there));
}

TEST(NearMemory, MemoryThatCannotBeReadIsAnErrorInsteadOfAWait) {
  Lendings lendings;
  Bytes there(8192);
  void* hole = ::mmap(nullptr, there.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::span<const std::byte> message(static_cast<const std::byte*>(hole), there.size());
  EXPECT_FALSE(can_be_read(message));
  EXPECT_TRUE(can_be_read(there));
  const Whereabouts where = lendings.lend(1, 7, 0, message);
  try {
    fetch(own_hello(), where, there);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::system);
  }
  ::munmap(hole, there.size());
}

}  // namespace
}  // namespace lockstep::transport::tcp
