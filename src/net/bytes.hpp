// Numbers as they travel: little endian, at fixed places. And text, made fit to be shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lockstep::net {

inline void put_u32(std::span<std::byte, 4> to, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

inline std::uint32_t get_u32(std::span<const std::byte, 4> from) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(from[i]) << (8 * i);
  return value;
}

/// Up to the first zero; what is not printable becomes '?'.
inline std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c == '\0') break;
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text;
}

}  // namespace lockstep::net
