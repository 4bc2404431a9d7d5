// Variables of the environment as values. An empty one counts as unset.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "lockstep/error.hpp"

namespace lockstep {

inline std::optional<std::string> text_from(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

/// Throws Error(invalid_argument) when it is set and is no number, or a smaller one than `least`.
template <class Number>
std::optional<Number> number_from(const char* name, Number least) {
  const auto text = text_from(name);
  if (!text) return std::nullopt;
  Number value{};
  const char* end = text->data() + text->size();
  auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < least) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}={} is not a number of at least {}. It is set by what starts the ranks; if you set it "
                            "yourself, correct or unset it.",
                            name, *text, least));
  }
  return value;
}

}  // namespace lockstep
