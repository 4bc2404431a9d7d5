#include "fusion/plan.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace lockstep::fusion {
namespace {

collective::Part part_of(std::size_t bytes) { return {.dtype = DType::u8, .elements = bytes}; }

std::vector<BucketRange> cut_bytes(const std::vector<std::size_t>& bytes, std::size_t most) {
  std::vector<collective::Part> parts;
  for (std::size_t count : bytes) parts.push_back(part_of(count));
  return cut(parts, most);
}

Entry entry_of(const std::string& name, std::uint64_t key, std::size_t bytes = 100) {
  Entry entry{.like = {}, .part = part_of(bytes), .key = key, .hash = key * 31};
  entry.like.name = name;
  return entry;
}

TEST(Plan, BucketsAreFilledInOrder) {
  EXPECT_EQ(cut_bytes({}, 1024), (std::vector<BucketRange>{}));
  EXPECT_EQ(cut_bytes({1, 128, 129}, 1024), (std::vector<BucketRange>{{0, 3, 512}}));
  EXPECT_EQ(cut_bytes({512, 512, 1}, 1024), (std::vector<BucketRange>{{0, 2, 1024}, {2, 1, 128}}));
  EXPECT_EQ(cut_bytes({256, 5000, 256, 256}, 1024), (std::vector<BucketRange>{{0, 1, 256}, {1, 1, 5120}, {2, 2, 512}}))
      << "a large tensor has a bucket of its own";
}

TEST(Plan, EmptyTensorsTakeNoRoom) { EXPECT_EQ(cut_bytes({0, 0, 7}, 128), (std::vector<BucketRange>{{0, 3, 128}})); }

TEST(Plan, PartsBeginOnLinesOfTheirOwn) {
  const Plan plan({entry_of("a", 1, 100), entry_of("b", 2, 129), entry_of("c", 3, 1)}, 512);
  ASSERT_EQ(plan.buckets().size(), 1U);
  EXPECT_EQ(plan.parts_of(0)[0].offset, 0U);
  EXPECT_EQ(plan.parts_of(0)[1].offset, 128U);
  EXPECT_EQ(plan.parts_of(0)[2].offset, 384U);
  EXPECT_EQ(plan.entries()[2].part.offset, 384U);
}

TEST(Plan, ABucketIsOrderedByPlaceAndHoldsWhatWasSubmittedTogether) {
  std::vector<Entry> entries;
  const std::vector<std::pair<std::size_t, std::uint64_t>> bytes_and_places = {{512, 9}, {384, 5}, {512, 8}, {128, 2}};
  for (const auto& [bytes, place] : bytes_and_places) {
    entries.push_back(entry_of(std::to_string(place), place, bytes));
    entries.back().place = place;
  }
  const Plan plan(std::move(entries), 1024);
  EXPECT_EQ(plan.buckets(), (std::vector<BucketRange>{{0, 2, 896}, {2, 2, 640}})) << "the small one came last";
  std::vector<std::uint64_t> places;
  for (const Entry& entry : plan.entries()) places.push_back(entry.place);
  EXPECT_EQ(places, (std::vector<std::uint64_t>{5, 9, 2, 8}));
  EXPECT_EQ(plan.entries()[0].turn, 1U);
  EXPECT_EQ(plan.entries()[3].turn, 2U);
  EXPECT_EQ(plan.parts_of(0)[1].offset, 384U);
  EXPECT_EQ(plan.parts_of(1)[1].offset, 128U);
  EXPECT_EQ(plan.entries()[3].part.offset, 128U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.find(places[i], std::to_string(places[i])), i);
}

TEST(Plan, EntriesAreFoundByKeyAndName) {
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < 500; ++i) entries.push_back(entry_of(std::to_string(i), i % 5));  // keys that collide
  const Plan plan(std::move(entries), 1024);
  for (std::uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(plan.find(i % 5, std::to_string(i)), i);
    EXPECT_LT(plan.bucket_of(i), plan.buckets().size());
    const BucketRange& bucket = plan.buckets()[plan.bucket_of(i)];
    EXPECT_TRUE(bucket.first <= i && i < bucket.first + bucket.count);
  }
  EXPECT_EQ(plan.find(0, "1"), std::nullopt);
  EXPECT_EQ(plan.find(7, "7"), std::nullopt);
}

TEST(Plan, TheOrderCountsInTheHashButNotInTheSet) {
  const Plan one({entry_of("a", 1), entry_of("b", 2)});
  const Plan other({entry_of("b", 2), entry_of("a", 1)});
  EXPECT_NE(one.hash(), other.hash());
  EXPECT_EQ(one.set(), other.set());
  const Plan more({entry_of("a", 1), entry_of("b", 2), entry_of("c", 3)});
  EXPECT_NE(one.set(), more.set());
}

}  // namespace
}  // namespace lockstep::fusion
