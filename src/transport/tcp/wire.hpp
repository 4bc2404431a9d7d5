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
  std::uint64_t process = 0;  ///< its id, for people
  std::uint64_t token = 0;    ///< random, the same for all ranks of one process
};

/// A part of a message: messages of any length travel in pieces, so memory is taken as they arrive.
struct Piece {
  std::uint64_t operation = 0;
  std::uint32_t part = 0;
  std::uint64_t total = 0;  ///< bytes of the whole message
  std::span<const std::byte> data;
};

struct Declaration {
  Standstill standstill;
  std::vector<pid_t> threads;
};

struct Left {};
struct Heartbeat {};

inline constexpr std::size_t kPieceBytes = 1 << 20;

std::vector<std::byte> pack(const Hello& hello, std::uint32_t epoch);
std::vector<std::byte> pack(const Notice& notice, std::uint32_t epoch);
std::vector<std::byte> pack(const Declaration& declaration, std::uint32_t epoch);
std::vector<std::byte> pack(const Left&, std::uint32_t epoch);
std::vector<std::byte> pack(const Heartbeat&, std::uint32_t epoch);
std::vector<std::byte> pack(const Message& message, std::uint32_t epoch);

/// Frame and header of a piece without its data, which follows.
std::vector<std::byte> pack_piece_head(const Piece& piece, std::uint32_t epoch);

/// Of a LastingLink's own: how many frames have arrived.
std::vector<std::byte> pack_confirmation(std::uint64_t frames, std::uint32_t epoch);
/// nullopt: it is another frame. Throws net::BadFrame.
std::optional<std::uint64_t> unpack_confirmation(const net::Frame& frame);

/// A Piece refers to the frame.
using Said = std::variant<Hello, Notice, Piece, Declaration, Left, Heartbeat, Message>;

/// Throws net::BadFrame.
Said unpack(const net::Frame& frame, int world_size);

/// For a FrameReader.
std::optional<std::uint32_t> said_limit(std::uint32_t kind);

}  // namespace lockstep::transport::tcp
