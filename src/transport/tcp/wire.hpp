// What ranks say to each other over TCP, as frames (net/frame.hpp). Everything here is proved to come from a rank of
// the same release, and is checked all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "net/frame.hpp"
#include "transport/tcp/agreement.hpp"
#include "transport/transport.hpp"

namespace lockstep::transport::tcp {

/// Says where a rank runs; the first on every data connection.
struct Hello {
  std::uint64_t process = 0;  ///< its id
  std::uint64_t token = 0;    ///< random, the same for all ranks of one process
  std::uint64_t probe = 0;    ///< where in its memory the token lies
};

/// A part of a message: messages of any length travel in pieces, so memory is taken as they arrive.
struct Piece {
  std::uint64_t operation = 0;
  std::uint32_t part = 0;
  std::uint64_t total = 0;  ///< bytes of the whole message
  std::span<const std::byte> data = {};
  std::size_t placed = 0;  ///< instead of data: bytes that are where they belong already
};

/// Instead of a message: where it lies in the sender's memory (near_memory.hpp).
struct Whereabouts {
  std::uint64_t operation = 0;
  std::uint32_t part = 0;
  std::uint64_t total = 0;   ///< bytes
  std::uint64_t data = 0;    ///< address
  std::uint64_t slip = 0;    ///< address
  std::uint64_t number = 0;  ///< by which the receiver says that it has it
};

/// The receiver has it, or does not want it.
struct Fetched {
  std::uint64_t number = 0;
};

/// This rank can read the other's memory.
struct InReach {};

/// A notice, and the tensor that comes with it.
struct Announcement {
  Notice notice;
  std::span<const std::byte> attached = {};
  std::size_t placed = 0;  ///< instead: bytes of it that are where they belong already
};

struct Declaration {
  Standstill standstill;
  std::vector<pid_t> threads;
};

struct Left {};
struct Heartbeat {};

/// Bytes without a meaning: from how they travel the ranks learn what the network can do, and so does TCP.
struct Filler {};

/// What a rank takes the network for.
struct Measured {
  Network network;
};

inline constexpr std::size_t kPieceBytes = 256 << 10;
inline constexpr std::size_t kPieceHeadBytes = 20;                   ///< of its payload, before the data
inline constexpr std::size_t kNoticeHeadBytes = sizeof(Notice) + 4;  ///< the same, before what is attached
inline constexpr std::size_t kMostAttached = 1 << 20;
inline constexpr std::size_t kMostFiller = 64 << 10;

std::vector<std::byte> pack(const Hello& hello, std::uint32_t epoch);
std::vector<std::byte> pack(const Declaration& declaration, std::uint32_t epoch);
std::vector<std::byte> pack(const Left&, std::uint32_t epoch);
std::vector<std::byte> pack(const Heartbeat&, std::uint32_t epoch);
std::vector<std::byte> pack(const Message& message, std::uint32_t epoch);
std::vector<std::byte> pack(const Measured& measured, std::uint32_t epoch);
std::vector<std::byte> pack(const Whereabouts& where, std::uint32_t epoch);
std::vector<std::byte> pack(const Fetched& fetched, std::uint32_t epoch);
std::vector<std::byte> pack(const InReach&, std::uint32_t epoch);
/// At most kMostFiller bytes.
std::vector<std::byte> pack_filler(std::size_t bytes, std::uint32_t epoch);

/// What comes before the data of a piece, and before what is attached to a notice.
std::vector<std::byte> pack_head(const Piece& piece, std::uint32_t epoch);
std::vector<std::byte> pack_head(const Announcement& announcement, std::uint32_t epoch);

/// The kind of a piece's frame, and what its first kPieceHeadBytes bytes say.
std::uint32_t kind_of_pieces();
std::uint32_t kind_of_notices();
Piece unpack_piece_head(std::span<const std::byte> head);

/// Of a LastingLink's own: how many frames have arrived.
std::vector<std::byte> pack_confirmation(std::uint64_t frames, std::uint32_t epoch);
/// nullopt: it is another frame. Throws net::BadFrame.
std::optional<std::uint64_t> unpack_confirmation(const net::Frame& frame);

/// A Piece and an Announcement refer to the frame.
using Said = std::variant<Hello, Announcement, Piece, Declaration, Left, Heartbeat, Filler, Measured, Whereabouts,
                          Fetched, InReach, Message>;

/// Throws net::BadFrame.
Said unpack(const net::Frame& frame, int world_size);

/// For a FrameReader.
std::optional<std::uint32_t> said_limit(std::uint32_t kind);

}  // namespace lockstep::transport::tcp
