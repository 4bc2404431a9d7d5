#include "net/frame.hpp"

#include <algorithm>
#include <cstring>

#include "target.hpp"

namespace {

using namespace lockstep;

constexpr std::uint32_t kMostBytes = 512;

std::optional<std::uint32_t> limit(std::uint32_t kind) {
  if (kind > 3) return std::nullopt;
  return kMostBytes >> kind;
}

// Frames in the order in which they came, until the first that is bad.
std::vector<net::Frame> read(std::span<const std::byte> bytes, std::size_t piece) {
  net::FrameReader reader(1, limit);
  std::vector<net::Frame> frames;
  try {
    while (!bytes.empty()) {
      const auto space = reader.space();
      must(!space.empty(), "a reader that wants no more");
      must(reader.memory() <= kMostBytes, "a length beyond its limit was accepted");
      const std::size_t count = std::min({space.size(), bytes.size(), piece});
      std::memcpy(space.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      reader.filled(count);
      while (auto frame = reader.take()) {
        must(frame->payload.size() <= limit(frame->kind), "a frame beyond its limit was accepted");
        frames.push_back(std::move(*frame));
      }
    }
  } catch (const net::BadFrame&) {
  }
  return frames;
}

bool same(const net::Frame& one, const net::Frame& other) {
  return one.kind == other.kind && one.payload == other.payload;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto whole = read(bytes_of(data, size), size);
  const auto in_pieces = read(bytes_of(data, size), 7);
  must(std::ranges::equal(whole, in_pieces, same), "frames depend on how their bytes were cut");
  return 0;
}
