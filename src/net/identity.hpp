// Who a caller says it is, before anything is believed: the identity of a TLS 1.3 pre-shared key, and the first part of
// the hello of a plain data connection. It has one size and one layout in all versions of Lockstep, so that ranks of
// different versions can tell each other so:
//
//      0  "LSID"
//      4  protocol     the version of everything that follows the handshake
//      8  release      of Lockstep, 16 characters, for people
//     24  job          the beginning of the SHA-256 of the job's name
//     40  epoch
//     44  use          control or data
//     48  from, to     ranks
//     56  size         of the world
//     60  connection   which of the data connections of this pair
//
// Numbers are little endian. What it says is believed once its sender has proved the key that belongs to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/proof.hpp"

namespace lockstep::net {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::size_t kIdentityBytes = 64;
inline constexpr std::byte kIdentityFirstByte{'L'};

enum class Use : std::uint32_t { control = 1, data = 2 };

using JobTag = std::array<std::uint8_t, 16>;

struct Identity {
  std::uint32_t protocol = kProtocol;
  std::string release;  ///< at most 16 printable characters
  JobTag job = {};
  std::uint32_t epoch = 0;
  Use use = Use::control;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t size = 0;
  std::uint32_t connection = 0;

  bool operator==(const Identity&) const = default;
};

using IdentityBytes = std::array<std::byte, kIdentityBytes>;

IdentityBytes encode(const Identity& identity);

/// nullopt when it is none. All fields may have any value; unprintable characters of `release` become '?'.
std::optional<Identity> decode_identity(std::span<const std::byte> bytes);

/// What a rank knows of itself and its job.
struct Membership {
  std::string secret;
  JobTag job = {};
  std::uint32_t epoch = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t protocol = kProtocol;
  std::string release;
  std::string host = {};  ///< its name, for people

  Identity identity(std::uint32_t to, Use use, std::uint32_t connection = 0) const;
};

JobTag job_tag(std::string_view job_name);

/// The key of the control channel to which the identity belongs. It depends on the job's secret, and on the use, the
/// epoch and the job that the identity claims, but not on the version: different versions understand each other well
/// enough to say so.
Digest control_key(std::string_view secret, const Identity& identity);

/// Why a rank that has proved its key is turned away all the same.
enum class Reason : std::uint32_t { version = 1, job = 2, epoch = 3, world = 4 };

struct Refusal {
  Reason reason = Reason::world;
  std::string text;  ///< for people: both what is wrong and what to do
};

/// What speaks against a caller that claims `caller`; nullopt: nothing. `from`: the address from which it called.
std::optional<Refusal> judge(const Identity& caller, const Membership& listener, const std::string& from = {});

}  // namespace lockstep::net
