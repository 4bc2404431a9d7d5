// What ranks say to each other over TCP. The first byte is the kind, the rest the payload.
#include "target.hpp"
#include "transport/tcp/wire.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  const auto payload = bytes_of(data, size).subspan(1);
  const auto limit = transport::tcp::said_limit(data[0]);
  if (!limit || payload.size() > *limit) return 0;  // no reader lets it through
  const net::Frame frame{.kind = data[0], .payload = {payload.begin(), payload.end()}};
  try {
    const auto said = transport::tcp::unpack(frame, 3);
    if (const auto* piece = std::get_if<transport::tcp::Piece>(&said))
      must(piece->data.size() <= piece->total, "a piece that is longer than its message");
    if (const auto* where = std::get_if<transport::tcp::Whereabouts>(&said))
      must(where->data + where->total >= where->data, "a message that lies nowhere");
    if (const auto* announced = std::get_if<transport::tcp::Announcement>(&said)) {
      must(announced->notice.head.inline_bytes <= transport::kInlineBytes, "a notice with more than fits");
      must(announced->attached.size() <= payload.size(), "a notice with more than came");
    }
    if (const auto* measured = std::get_if<transport::tcp::Measured>(&said))
      must(measured->network.bytes_per_trip() <= 16 << 20, "a network that carries more than there can be");
    if (const auto* declaration = std::get_if<transport::tcp::Declaration>(&said))
      must(declaration->threads.size() <= 64, "a rank with more threads than it may declare");
  } catch (const net::BadFrame&) {
  }
  return 0;
}
