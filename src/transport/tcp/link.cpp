#include "transport/tcp/link.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kReadAhead = 32 << 10;

}  // namespace

Link::Link(std::unique_ptr<net::Stream> stream, std::uint32_t epoch)
    : stream_(std::move(stream)), reader_(epoch, &said_limit), ahead_(kReadAhead) {}

void Link::send(std::span<const std::byte> head, std::span<const std::byte> body) {
  for (auto bytes : {head, body}) {
    if (unsent_.empty()) bytes = bytes.subspan(give(bytes));
    keep(bytes);
  }
}

void Link::flush() {
  while (!unsent_.empty()) {
    const std::span<const std::byte> rest = std::span(unsent_.front()).subspan(sent_of_first_);
    const std::size_t gone = give(rest);
    sent_of_first_ += gone;
    if (gone < rest.size()) return;
    unsent_.pop_front();
    sent_of_first_ = 0;
  }
}

std::optional<net::Frame> Link::receive() {
  for (;;) {
    if (auto frame = reader_.take()) return frame;
    const std::span<std::byte> space = reader_.space();
    if (unread_.empty() && space.size() < ahead_.size()) {
      const std::size_t got = stream_->read_some(ahead_);
      if (got == 0) return std::nullopt;
      unread_ = std::span<const std::byte>(ahead_).first(got);
    }
    std::size_t got = 0;
    if (unread_.empty()) {
      got = stream_->read_some(space);
    } else {
      got = std::min(space.size(), unread_.size());
      std::memcpy(space.data(), unread_.data(), got);
      unread_ = unread_.subspan(got);
    }
    reader_.filled(got);
    if (got == 0) return std::nullopt;
  }
}

bool Link::is_unacknowledged() const {
  int bytes = 0;
  return ::ioctl(fd(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

std::size_t Link::give(std::span<const std::byte> bytes) {
  std::size_t total = 0;
  while (total < bytes.size()) {
    const std::size_t gone = stream_->write_some(bytes.subspan(total));
    if (gone == 0) break;
    total += gone;
  }
  return total;
}

void Link::keep(std::span<const std::byte> bytes) {
  if (!bytes.empty()) unsent_.emplace_back(bytes.begin(), bytes.end());
}

}  // namespace lockstep::transport::tcp
