#include "net/stream.hpp"

#include <poll.h>

#include <algorithm>

namespace lockstep::net {

bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{.fd = fd, .events = events, .revents = 0};
    if (::poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000))) > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

void read_whole(Stream& stream, std::span<std::byte> to, Clock::time_point deadline) {
  while (!to.empty()) {
    const std::size_t got = stream.read_some(to);
    to = to.subspan(got);
    if (got == 0 && !wait_for(stream.fd(), POLLIN, deadline))
      throw Error(ErrorCode::timeout, "the peer sent nothing in time");
  }
}

void write_whole(Stream& stream, std::span<const std::byte> from, Clock::time_point deadline) {
  while (!from.empty()) {
    const std::size_t gone = stream.write_some(from);
    from = from.subspan(gone);
    if (gone == 0 && !wait_for(stream.fd(), POLLOUT, deadline))
      throw Error(ErrorCode::timeout, "the peer took nothing in time");
  }
}

}  // namespace lockstep::net
