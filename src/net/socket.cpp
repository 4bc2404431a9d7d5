#include "net/socket.hpp"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace lockstep::net {
namespace {

constexpr int kKind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// Small messages leave at once.
void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool try_again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Needed to take a port at which connections of an earlier process have not faded away yet. While a port is held and
// not open it is off, or else another process could open it.
void share_port(int fd, int on) { ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); }

Fd bound_to(const Address& address) {
  Fd fd(::socket(address.family(), kKind, 0));
  if (!fd) throw_errno("make a socket");
  share_port(fd.get(), 1);
  if (::bind(fd.get(), address.raw(), address.raw_size()) != 0) throw_errno("listen on " + address.text());
  return fd;
}

Address address_of(const Fd& fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) throw_errno("name a socket");
  return Address::from(bound);
}

Fd open_reserve() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Socket Socket::connect(const Address& to, Clock::time_point deadline) {
  Fd fd(::socket(to.family(), kKind, 0));
  if (!fd) throw_errno("make a socket");
  int failure = ::connect(fd.get(), to.raw(), to.raw_size()) == 0 ? 0 : errno;
  if (failure == EINPROGRESS || failure == EINTR) {
    if (!wait_for(fd.get(), POLLOUT, deadline)) throw Error(ErrorCode::timeout, "no answer from " + to.text());
    socklen_t size = sizeof failure;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  const std::string words = "cannot reach " + to.text() + ": " + std::strerror(failure);
  if (failure == ECONNREFUSED) throw NobodyListens(words);
  if (failure != 0) throw Error(ErrorCode::unavailable, words);
  send_at_once(fd.get());
  return Socket(std::move(fd));
}

std::size_t Socket::read_some(std::span<std::byte> to) {
  if (to.empty()) return 0;
  return checked(::recv(fd_.get(), to.data(), to.size(), 0));
}

std::size_t Socket::read_some(std::span<std::byte> first, std::span<std::byte> second) {
  iovec parts[] = {{.iov_base = first.data(), .iov_len = first.size()},
                   {.iov_base = second.data(), .iov_len = second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return checked(::recvmsg(fd_.get(), &message, 0));
}

std::size_t Socket::checked(ssize_t got) {
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) throw ConnectionLost("the peer closed the connection");
  if (try_again()) return 0;
  throw ConnectionLost(std::string("the connection is lost: ") + std::strerror(errno));
}

std::size_t Socket::write_some(Parts parts) {
  std::array<iovec, kMostParts> places;
  const std::size_t count = std::min(parts.size(), places.size());
  for (std::size_t i = 0; i < count; ++i)
    places[i] = {.iov_base = const_cast<std::byte*>(parts[i].data()), .iov_len = parts[i].size()};
  msghdr message{};
  message.msg_iov = places.data();
  message.msg_iovlen = count;
  const ssize_t gone = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (gone >= 0) return static_cast<std::size_t>(gone);
  if (try_again()) return 0;
  throw ConnectionLost(std::string("the connection is lost: ") + std::strerror(errno));
}

std::optional<std::byte> Socket::first_byte() const {
  std::byte first{};
  const ssize_t got = ::recv(fd_.get(), &first, 1, MSG_PEEK);
  if (got == 1) return first;
  if (got < 0 && try_again()) return std::nullopt;
  throw ConnectionLost("the caller hung up");
}

std::string Socket::peer() const {
  sockaddr_storage raw{};
  socklen_t size = sizeof raw;
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&raw), &size) != 0) return "a peer that is gone";
  return Address::from(raw).text();
}

Listener::Listener(const Address& address) : reserve_(open_reserve()), address_(address) {
  if (address.is_wildcard()) {
    throw Error(ErrorCode::invalid_argument,
                "refusing to listen on all interfaces (" + address.text() + "); name the one that the ranks use");
  }
  Fd fd = bound_to(address);
  address_ = address_of(fd);
  // A socket keeps a port that it has asked for by number; one that the system chose would be lost with `close`.
  if (address != address_) fd = bound_to(address_);
  share_port(fd.get(), 0);
  fd_ = PrivateFd(std::move(fd));
}

void Listener::open() {
  const std::lock_guard lock(mutex_);
  if (openings_ == 0) {
    share_port(fd_.get(), 1);
    if (::listen(fd_.get(), SOMAXCONN) != 0) throw_errno("listen on " + address_.text());
  }
  ++openings_;
}

void Listener::close() {
  const std::lock_guard lock(mutex_);
  if (--openings_ > 0) return;
  share_port(fd_.get(), 0);
  ::shutdown(fd_.get(), SHUT_RD);
}

std::optional<Socket> Listener::accept() {
  Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && (errno == EMFILE || errno == ENFILE)) {
    // Without this the caller would stay in the queue, and whoever polls would never sleep again.
    reserve_.reset();
    Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
    reserve_ = open_reserve();
    return std::nullopt;
  }
  if (!fd) return std::nullopt;
  send_at_once(fd.get());
  return Socket(std::move(fd));
}

}  // namespace lockstep::net
