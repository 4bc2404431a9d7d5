// What travels on a proved connection: frames, each with a header of fixed size.
//
//      0  length   of what follows the header
//      4  kind
//      8  epoch
//
// A length is compared with the limit of its kind before anything else happens, and memory is taken as bytes arrive,
// not as they are announced. A frame of an older epoch is read past and dropped.
//
// A frame of much data can be read past all buffers: whoever knows its first bytes says where the rest belongs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/error.hpp"

namespace lockstep::net {

inline constexpr std::size_t kFrameHeaderBytes = 12;

struct FrameHeader {
  std::uint32_t length = 0;
  std::uint32_t kind = 0;
  std::uint32_t epoch = 0;

  bool operator==(const FrameHeader&) const = default;
};

std::array<std::byte, kFrameHeaderBytes> encode(const FrameHeader& header);
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// Header and payload in one piece.
std::vector<std::byte> make_frame(std::uint32_t kind, std::uint32_t epoch, std::span<const std::byte> payload);

struct Frame {
  std::uint32_t kind = 0;
  std::vector<std::byte> payload;
  std::size_t placed = 0;  ///< bytes behind the payload that are where they belong already
};

/// The peer, though proved, does not speak as it should: the connection is of no use any more.
class BadFrame : public Error {
 public:
  explicit BadFrame(const std::string& message) : Error(ErrorCode::internal, message) {}
};

/// Makes frames of bytes as they come:
///
///     reader.filled(stream.read_some(reader.space()));
///     while (auto frame = reader.take()) ...
class FrameReader {
 public:
  /// The largest payload of a kind; nullopt for a kind that does not exist.
  using Limit = std::function<std::optional<std::uint32_t>(std::uint32_t kind)>;

  /// Where the rest of a frame belongs, which begins with `prefix`: nowhere, or exactly so many bytes, which stay
  /// writable until the frame is complete or `take_back` was called.
  using FindPlace = std::function<std::span<std::byte>(std::span<const std::byte> prefix, std::size_t rest)>;

  FrameReader(std::uint32_t epoch, Limit limit) : epoch_(epoch), limit_(std::move(limit)) {}

  /// Asks `find` about frames of this kind once their first bytes are there. To be told before anything arrives.
  void place(std::uint32_t kind, std::size_t prefix, FindPlace find);

  /// The place of a frame that is arriving is not to be written any more if it lies in this range.
  void take_back(std::span<const std::byte> range);

  /// Where the next bytes belong: at least one and at most 64 KB, or more once a frame has proved to be large.
  std::span<std::byte> space();

  /// So many bytes of it have been written. Throws BadFrame.
  void filled(std::size_t bytes);

  /// A whole frame, if there is one. Asked before more space is.
  std::optional<Frame> take();

  /// Bytes of memory taken for the frame that is arriving.
  std::size_t memory() const { return payload_.capacity(); }

  /// How many frames of older epochs were dropped.
  std::uint64_t dropped() const { return dropped_; }

 private:
  void begin_frame();
  void ask_for_place();
  bool complete() const { return header_filled_ == kFrameHeaderBytes && arrived_ == header_.length; }

  std::uint32_t epoch_;
  Limit limit_;
  std::array<std::byte, kFrameHeaderBytes> header_bytes_{};
  std::size_t header_filled_ = 0;
  FrameHeader header_;
  bool stale_ = false;              ///< of an older epoch: its payload is overwritten again and again
  std::size_t arrived_ = 0;         ///< of the payload
  std::vector<std::byte> payload_;  ///< may be longer than what has arrived, by at most as much again and 64 KB
  std::uint64_t dropped_ = 0;
  struct Placing {
    std::uint32_t kind = 0;
    std::size_t prefix = 0;
    FindPlace find;
  };
  std::vector<Placing> placings_;
  const Placing* placing_ = nullptr;  ///< of this frame, until it was asked
  std::size_t prefix_ = 0;            ///< of this frame: bytes before its place
  std::span<std::byte> place_;        ///< of what follows the prefix; empty: none
};

}  // namespace lockstep::net
