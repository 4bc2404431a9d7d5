#include "transport/tcp/link.hpp"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kReadAhead = 8 << 10;
constexpr std::size_t kBehindLarge = 512;  // what is read ahead behind a large frame, of which the rest is read past it

}  // namespace

Link::Link(std::unique_ptr<net::Stream> stream, std::uint32_t epoch)
    : stream_(std::move(stream)), reader_(epoch, &said_limit), ahead_(kReadAhead) {}

std::optional<net::Frame> Link::receive() {
  for (;;) {
    if (auto frame = reader_.take()) return frame;
    const std::span<std::byte> space = reader_.space();
    const std::size_t limit = left_in_batch_ > 0 ? space.size() + ahead_.size() : stream_->held_back();
    std::size_t got = 0;
    if (!unread_.empty()) {
      got = std::min(space.size(), unread_.size());
      std::memcpy(space.data(), unread_.data(), got);
      unread_ = unread_.subspan(got);
    } else if (limit == 0) {
      return std::nullopt;
    } else if (space.size() < ahead_.size()) {
      unread_ = std::span<const std::byte>(ahead_).first(read(std::span(ahead_).first(std::min(ahead_.size(), limit))));
      if (unread_.empty()) return std::nullopt;
      continue;
    } else {
      const std::span<std::byte> to = space.first(std::min(space.size(), limit));
      const std::size_t behind = to.size() == space.size() ? kBehindLarge : 0;
      const std::size_t both = read(to, std::span(ahead_).first(behind));
      got = std::min(both, to.size());
      unread_ = std::span<const std::byte>(ahead_).first(both - got);
    }
    reader_.filled(got);
    if (got == 0) return std::nullopt;
  }
}

// A read that has found the end of what there was ends the batch: the next would find nothing.
std::size_t Link::read(std::span<std::byte> to, std::span<std::byte> ahead) {
  const std::size_t got = ahead.empty() ? stream_->read_some(to) : stream_->read_some(to, ahead);
  left_in_batch_ -= std::min(got, left_in_batch_);
  bytes_read_ += got;
  if (got < to.size() + ahead.size() && stream_->is_direct()) end_batch();
  return got;
}

bool Link::is_unacknowledged() const {
  int bytes = 0;
  return ::ioctl(fd(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

Network Link::network() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  if (info.tcpi_min_rtt == ~0U) return {};  // nothing was measured yet
  return {.trip = std::chrono::microseconds(info.tcpi_min_rtt), .rate = static_cast<double>(info.tcpi_delivery_rate)};
}

// The option TCP_USER_TIMEOUT would do nearly this, but would also end a connection whose peer does not read, as one
// that is stopped.
bool Link::is_swallowed(net::Clock::time_point now, net::Clock::duration limit) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (info.tcpi_unacked > 0 && info.tcpi_bytes_acked == acknowledged_) return now - acknowledged_at_ > limit;
  acknowledged_ = info.tcpi_bytes_acked;
  acknowledged_at_ = now;
  return false;
}

}  // namespace lockstep::transport::tcp
