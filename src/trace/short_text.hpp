// Text in a fixed place inside a record: copying it allocates nothing and costs a few nanoseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace lockstep::trace {

/// At most Size - 1 bytes; ends with a zero byte. A multiple of eight, so that records can be copied by words.
template <std::size_t Size>
struct ShortText {
  static_assert(Size % 8 == 0);
  std::array<char, Size> bytes;

  std::string_view view() const { return {bytes.data(), ::strnlen(bytes.data(), Size)}; }

  void clear() { bytes[0] = 0; }

  /// What does not fit is cut off at the end.
  void assign(std::string_view text) { copy(text.substr(0, Size - 1)); }

  /// What does not fit is cut off at the front: names of tensors differ at their end.
  void assign_end(std::string_view text) {
    if (text.size() < Size) return copy(text);
    text.remove_prefix(text.size() - (Size - 3));
    while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80)
      text.remove_prefix(1);  // half a character
    bytes[0] = bytes[1] = '.';
    text.copy(&bytes[2], text.size());
    bytes[2 + text.size()] = 0;
  }

 private:
  void copy(std::string_view text) {
    text.copy(bytes.data(), text.size());
    bytes[text.size()] = 0;
  }
};

using ShortName = ShortText<48>;

}  // namespace lockstep::trace
