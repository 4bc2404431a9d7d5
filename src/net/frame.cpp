#include "net/frame.hpp"

#include <algorithm>
#include <cstring>

#include "net/bytes.hpp"

namespace lockstep::net {
namespace {

constexpr std::size_t kGrowth = 64 << 10;

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  const std::span<std::byte, kFrameHeaderBytes> to(bytes);
  put_u32(to.subspan<0, 4>(), header.length);
  put_u32(to.subspan<4, 4>(), header.kind);
  put_u32(to.subspan<8, 4>(), header.epoch);
  return bytes;
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  return {.length = get_u32(bytes.subspan<0, 4>()),
          .kind = get_u32(bytes.subspan<4, 4>()),
          .epoch = get_u32(bytes.subspan<8, 4>())};
}

std::vector<std::byte> make_frame(std::uint32_t kind, std::uint32_t epoch, std::span<const std::byte> payload) {
  const auto header = encode({.length = static_cast<std::uint32_t>(payload.size()), .kind = kind, .epoch = epoch});
  std::vector<std::byte> frame(header.size() + payload.size());
  std::memcpy(frame.data(), header.data(), header.size());
  if (!payload.empty()) std::memcpy(frame.data() + header.size(), payload.data(), payload.size());
  return frame;
}

void FrameReader::place(std::uint32_t kind, std::size_t prefix, FindPlace find) {
  placings_.push_back({.kind = kind, .prefix = prefix, .find = std::move(find)});
}

std::span<std::byte> FrameReader::space() {
  if (header_filled_ < kFrameHeaderBytes) return std::span(header_bytes_).subspan(header_filled_);
  if (!place_.empty()) return place_.subspan(arrived_ - prefix_);
  const std::size_t left = (placing_ == nullptr ? header_.length : prefix_) - arrived_;
  if (stale_) return std::span(payload_).first(std::min(left, payload_.size()));
  // At most doubled: a peer that announces much and sends little costs little.
  if (arrived_ == payload_.size()) payload_.resize(arrived_ + std::min(left, std::max(kGrowth, arrived_)));
  return std::span(payload_).subspan(arrived_);
}

void FrameReader::filled(std::size_t bytes) {
  if (header_filled_ == kFrameHeaderBytes) {
    arrived_ += bytes;
    if (placing_ != nullptr && arrived_ == prefix_) ask_for_place();
  } else {
    header_filled_ += bytes;
    if (header_filled_ == kFrameHeaderBytes) begin_frame();
  }
  if (stale_ && complete()) {
    ++dropped_;
    header_filled_ = 0;
    stale_ = false;
    payload_ = {};
  }
}

void FrameReader::begin_frame() {
  header_ = decode_frame_header(header_bytes_);
  arrived_ = 0;
  const auto limit = limit_(header_.kind);
  if (!limit) throw BadFrame("a frame of the unknown kind " + std::to_string(header_.kind));
  if (header_.length > *limit) {
    throw BadFrame("a frame of kind " + std::to_string(header_.kind) + " announces " + std::to_string(header_.length) +
                   " bytes; at most " + std::to_string(*limit) + " are allowed");
  }
  if (header_.epoch > epoch_) {
    throw BadFrame("a frame of epoch " + std::to_string(header_.epoch) + " in epoch " + std::to_string(epoch_));
  }
  stale_ = header_.epoch < epoch_;
  placing_ = nullptr;
  for (const Placing& one : placings_) {
    if (!stale_ && one.kind == header_.kind && header_.length > one.prefix) placing_ = &one;
  }
  if (placing_ != nullptr) prefix_ = placing_->prefix;
  payload_ = {};
  if (stale_) payload_.resize(std::min<std::size_t>(header_.length, kGrowth));
}

void FrameReader::ask_for_place() {
  const std::size_t rest = header_.length - prefix_;
  place_ = std::exchange(placing_, nullptr)->find(std::span(payload_).first(prefix_), rest);
  if (place_.size() != rest) place_ = {};
}

// What has arrived there is of no use to anybody; the frame still has to be read to its end.
void FrameReader::take_back(std::span<const std::byte> range) {
  const std::less<const std::byte*> before;
  const bool apart = place_.empty() || !before(place_.data(), range.data() + range.size()) ||
                     !before(range.data(), place_.data() + place_.size());
  if (apart) return;
  place_ = {};
  payload_.resize(header_.length);
}

std::optional<Frame> FrameReader::take() {
  if (!complete()) return std::nullopt;
  header_filled_ = 0;
  const std::size_t placed = std::exchange(place_, {}).size();
  payload_.resize(header_.length - placed);
  return Frame{.kind = header_.kind, .payload = std::exchange(payload_, {}), .placed = placed};
}

}  // namespace lockstep::net
