// The first frame of a control channel, from the listener to the caller that has proved the key: either a welcome, with
// who the listener is, or the reason in words why the caller is turned away all the same.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "lockstep/error.hpp"
#include "net/frame.hpp"
#include "net/identity.hpp"

namespace lockstep::net {

enum class GreetingKind : std::uint32_t { welcome = 1, refusal = 2 };

/// No greeting is longer.
inline constexpr std::uint32_t kGreetingBytes = 1024;

std::vector<std::byte> make_welcome(const Identity& listener);
std::vector<std::byte> make_refusal(const Refusal& refusal, std::uint32_t epoch);

using Greeting = std::variant<Identity, Refusal>;

/// Throws BadFrame. The text of a refusal is made printable.
Greeting decode_greeting(const Frame& frame);

/// The limits of greetings, for a FrameReader.
std::optional<std::uint32_t> greeting_limit(std::uint32_t kind);

/// Thrown to a caller that was turned away in words.
class Refused : public Error {
 public:
  explicit Refused(const Refusal& refusal)
      : Error(refusal.reason == Reason::version ? ErrorCode::incompatible : ErrorCode::unavailable, refusal.text),
        reason_(refusal.reason) {}
  Reason reason() const { return reason_; }

 private:
  Reason reason_;
};

}  // namespace lockstep::net
