#include "net/frame.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace lockstep::net {
namespace {

constexpr std::uint32_t kEpoch = 7;

std::optional<std::uint32_t> limit(std::uint32_t kind) {
  if (kind == 1) return 16;
  if (kind == 2) return 1u << 30;
  return std::nullopt;
}

std::vector<std::byte> payload(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31);
  return bytes;
}

// Gives the reader at most `piece` bytes at a time; returns the frames.
std::vector<Frame> feed(FrameReader& reader, std::span<const std::byte> bytes, std::size_t piece = 1 << 20) {
  std::vector<Frame> frames;
  while (!bytes.empty()) {
    const auto space = reader.space();
    const std::size_t count = std::min({space.size(), bytes.size(), piece});
    std::memcpy(space.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    reader.filled(count);
    while (auto frame = reader.take()) frames.push_back(std::move(*frame));
  }
  return frames;
}

std::vector<std::byte> operator+(std::vector<std::byte> left, const std::vector<std::byte>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(Frame, ArriveWholeHoweverTheBytesAreCut) {
  const auto bytes =
      make_frame(1, kEpoch, payload(16)) + make_frame(1, kEpoch, {}) + make_frame(2, kEpoch, payload(300'000));
  for (const std::size_t piece : {1u, 5u, 13u, 4096u, 1u << 20}) {
    FrameReader reader(kEpoch, limit);
    const auto frames = feed(reader, bytes, piece);
    ASSERT_EQ(frames.size(), 3u) << piece;
    EXPECT_EQ(frames[0].payload, payload(16));
    EXPECT_TRUE(frames[1].payload.empty());
    EXPECT_EQ(frames[2].kind, 2u);
    EXPECT_EQ(frames[2].payload, payload(300'000));
  }
}

TEST(Frame, ALengthBeyondTheLimitIsRefusedBeforeMemoryIsTaken) {
  for (const std::uint32_t length : {17u, 1u << 20, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    FrameReader reader(kEpoch, limit);
    EXPECT_THROW(feed(reader, encode(FrameHeader{.length = length, .kind = 1, .epoch = kEpoch})), BadFrame) << length;
    EXPECT_EQ(reader.memory(), 0u);
  }
}

TEST(Frame, AnUnknownKindAndALaterEpochAreRefused) {
  FrameReader first(kEpoch, limit), second(kEpoch, limit);
  EXPECT_THROW(feed(first, make_frame(3, kEpoch, {})), BadFrame);
  EXPECT_THROW(feed(second, make_frame(1, kEpoch + 1, {})), BadFrame);
}

TEST(Frame, MemoryGrowsAsBytesArriveNotAsTheyAreAnnounced) {
  FrameReader reader(kEpoch, limit);
  feed(reader, encode(FrameHeader{.length = 1u << 30, .kind = 2, .epoch = kEpoch}));
  std::size_t sent = 0;
  for (const auto& piece : {payload(1), payload(70'000), payload(500'000)}) {
    feed(reader, piece);
    sent += piece.size();
    EXPECT_LE(reader.memory(), 2 * sent + (64 << 10));
  }
}

TEST(Frame, OfAnOlderEpochIsReadPastInLittleMemory) {
  const auto bytes =
      make_frame(2, kEpoch - 1, payload(1 << 20)) + make_frame(1, 0, {}) + make_frame(1, kEpoch, payload(3));
  FrameReader reader(kEpoch, limit);
  const auto frames = feed(reader, bytes);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].payload, payload(3));
  EXPECT_EQ(reader.dropped(), 2u);
  EXPECT_LE(reader.memory(), 64u << 10);
}

// The data of a frame goes where it belongs, whole or not at all, however the bytes are cut.
TEST(Frame, TheRestOfAFrameCanBePlaced) {
  const auto bytes = make_frame(2, kEpoch, payload(100'000)) + make_frame(2, kEpoch, payload(20)) +
                     make_frame(1, kEpoch, payload(16)) + make_frame(2, kEpoch, payload(5'000));
  const auto large = payload(100'000);
  const std::span<const std::byte> whole = large;
  for (const std::size_t piece : {1u, 7u, 4096u, 1u << 20}) {
    std::vector<std::byte> place(100'000 - 20);
    FrameReader reader(kEpoch, limit);
    reader.place(2, 20, [&](std::span<const std::byte> prefix, std::size_t rest) {
      EXPECT_TRUE(std::ranges::equal(prefix, payload(20)));
      return rest == place.size() ? std::span(place) : std::span<std::byte>{};
    });
    const auto frames = feed(reader, bytes, piece);
    ASSERT_EQ(frames.size(), 4u) << piece;
    EXPECT_EQ(frames[0].payload, payload(20));
    EXPECT_EQ(frames[0].placed, place.size());
    EXPECT_TRUE(std::ranges::equal(place, whole.subspan(20)));
    EXPECT_EQ(frames[1].payload, payload(20));
    EXPECT_EQ(frames[2].payload, payload(16));
    EXPECT_EQ(frames[3].payload, payload(5'000));
    EXPECT_EQ(frames[3].placed, 0u);
  }
}

TEST(Frame, EachKindHasItsOwnPlaceAndPrefix) {
  const auto bytes = make_frame(1, kEpoch, payload(16)) + make_frame(2, kEpoch, payload(5'000)) +
                     make_frame(1, kEpoch, payload(10)) + make_frame(2, kEpoch, payload(5'000));
  const auto large = payload(5'000);
  for (const std::size_t piece : {1u, 7u, 4096u, 1u << 20}) {
    std::vector<std::byte> first, second;
    FrameReader reader(kEpoch, limit);
    reader.place(1, 4, [&](auto, std::size_t rest) { return first.resize(rest), std::span(first); });
    reader.place(2, 20, [&](auto, std::size_t rest) { return second.resize(rest), std::span(second); });
    const auto frames = feed(reader, bytes, piece);
    ASSERT_EQ(frames.size(), 4u) << piece;
    EXPECT_EQ(frames[0].placed, 12u);
    EXPECT_EQ(frames[1].payload, payload(20));
    EXPECT_EQ(frames[1].placed, 4'980u);
    EXPECT_EQ(frames[2].payload, payload(4));
    EXPECT_EQ(frames[2].placed, 6u);
    EXPECT_TRUE(std::ranges::equal(first, std::span(large).subspan(4, 6)));
    EXPECT_TRUE(std::ranges::equal(second, std::span(large).subspan(20)));
  }
}

TEST(Frame, APlaceThatIsTakenBackIsNotWrittenAnyMore) {
  const auto bytes = make_frame(2, kEpoch, payload(1'000)) + make_frame(1, kEpoch, payload(3));
  std::vector<std::byte> place(900);
  FrameReader reader(kEpoch, limit);
  reader.place(2, 100, [&](auto, std::size_t) { return std::span(place); });
  EXPECT_TRUE(feed(reader, std::span(bytes).first(500)).empty());
  std::vector<std::byte> other(10);
  reader.take_back(other);  // somewhere else
  EXPECT_EQ(reader.space().data(), place.data() + 500 - kFrameHeaderBytes - 100);
  reader.take_back(std::span(place).subspan(899));
  const std::vector<std::byte> before = place;
  const auto frames = feed(reader, std::span(bytes).subspan(500));
  EXPECT_EQ(place, before);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].payload.size(), 1'000u);
  EXPECT_EQ(frames[1].payload, payload(3));
}

}  // namespace
}  // namespace lockstep::net
