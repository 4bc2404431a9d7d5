#include "net/greeting.hpp"

#include <algorithm>
#include <string>

#include "net/bytes.hpp"

namespace lockstep::net {
namespace {

Reason decode_reason(std::uint32_t number) {
  if (number < static_cast<std::uint32_t>(Reason::version) || number > static_cast<std::uint32_t>(Reason::world))
    throw BadFrame("a refusal for the unknown reason " + std::to_string(number));
  return static_cast<Reason>(number);
}

}  // namespace

std::vector<std::byte> make_welcome(const Identity& listener) {
  return make_frame(static_cast<std::uint32_t>(GreetingKind::welcome), listener.epoch, encode(listener));
}

std::vector<std::byte> make_refusal(const Refusal& refusal, std::uint32_t epoch) {
  std::vector<std::byte> payload(4);
  put_u32(std::span(payload).first<4>(), static_cast<std::uint32_t>(refusal.reason));
  const auto text = std::as_bytes(std::span(refusal.text));
  payload.insert(payload.end(), text.begin(),
                 text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(text.size(), kGreetingBytes - 4)));
  return make_frame(static_cast<std::uint32_t>(GreetingKind::refusal), epoch, payload);
}

Greeting decode_greeting(const Frame& frame) {
  const std::span<const std::byte> payload(frame.payload);
  if (frame.kind == static_cast<std::uint32_t>(GreetingKind::welcome)) {
    const auto identity = decode_identity(payload);
    if (!identity) throw BadFrame("a welcome that says nobody's name");
    return *identity;
  }
  if (frame.kind != static_cast<std::uint32_t>(GreetingKind::refusal) || payload.size() < 4)
    throw BadFrame("a greeting that is none");
  return Refusal{.reason = decode_reason(get_u32(payload.first<4>())), .text = printable(payload.subspan(4))};
}

std::optional<std::uint32_t> greeting_limit(std::uint32_t kind) {
  if (kind == static_cast<std::uint32_t>(GreetingKind::welcome)) return static_cast<std::uint32_t>(kIdentityBytes);
  if (kind == static_cast<std::uint32_t>(GreetingKind::refusal)) return kGreetingBytes;
  return std::nullopt;
}

}  // namespace lockstep::net
