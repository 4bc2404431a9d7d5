#include "weights/memory_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace lockstep::weights {
namespace {

constexpr std::size_t kPage = 4096;
constexpr FilePart kWeights{.first = kPage, .bytes = 8 * kPage};
constexpr FilePart kState{.first = 9 * kPage, .bytes = 3 * kPage};
constexpr std::size_t kBytes = 12 * kPage;

std::size_t taken_by(int file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file, &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

TEST(MemoryFile, TakesMemoryPartByPartAndGivesItBack) {
  Fd file = make_memory_file(kBytes, kPage, kBytes);
  const int number = file.get();
  const Mapping mapping(std::move(file), kBytes, kWeights, kState);
  EXPECT_TRUE(mapping.commit_on_node(kState, 0));
  EXPECT_GE(taken_by(number), kPage + kState.bytes);
  EXPECT_TRUE(mapping.commit_on_node(kWeights, 1023));  // no machine has it: memory comes from elsewhere
  EXPECT_GE(taken_by(number), kBytes);

  mapping.base()[kWeights.first] = std::byte{7};
  mapping.base()[kState.first + 1] = std::byte{8};
  EXPECT_EQ(mapping.shown_weights()[0], std::byte{7});
  EXPECT_EQ(mapping.shown_state()[1], std::byte{8});

  const std::size_t before = taken_by(number);
  mapping.give_back(kWeights);
  EXPECT_LE(taken_by(number) + kWeights.bytes, before);
  EXPECT_EQ(mapping.shown_weights()[0], std::byte{0});
  EXPECT_EQ(mapping.shown_state()[1], std::byte{8});
}

TEST(MemoryFile, SaysHowToDoWithLess) {
  const std::string one = no_memory_for(1 << 20, 1).what(), three = no_memory_for(1 << 20, 3).what();
  EXPECT_EQ(one.find("LOCKSTEP_MEMORY_NODE"), std::string::npos);
  EXPECT_NE(three.find("LOCKSTEP_MEMORY_NODE=0 gives one copy of the weights instead of 3"), std::string::npos);
}

TEST(MemoryFile, IsFoundByWhoeverKnowsItsAddress) {
  const Fd file = make_memory_file(kBytes, kPage, kBytes);
  FileAddress address = address_of(file);
  EXPECT_TRUE(open_memory_file(address));
  ++address.inode;
  EXPECT_THROW(open_memory_file(address), Error);
}

}  // namespace
}  // namespace lockstep::weights
