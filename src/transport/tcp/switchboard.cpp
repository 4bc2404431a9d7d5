#include "transport/tcp/switchboard.hpp"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"

namespace lockstep::transport::tcp {
namespace {

using net::Clock;

constexpr auto kRepairLimit = std::chrono::seconds(3);  // then a peer whose data connection is not there again is dead

Fd make_poll() {
  Fd poll(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll) throw_errno("watch connections");
  return poll;
}

}  // namespace

Switchboard::Switchboard(const TcpOptions& options, std::vector<PeerStreams> streams, Callbacks callbacks)
    : options_(options),
      rank_(static_cast<int>(options.self.rank)),
      data_poll_(make_poll()),
      control_poll_(make_poll()),
      callbacks_(std::move(callbacks)),
      lines_(streams.size()) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    PeerStreams& both = streams[static_cast<std::size_t>(peer)];
    Line& one = line(peer);
    one.control = std::make_unique<Link>(std::move(both.control), options.self.epoch);
    one.data = std::make_unique<LastingLink>(std::move(both.data), options.self.epoch);
    one.heard = Clock::now();
    watch(control_poll_.get(), one.control->fd(), peer, false, EPOLL_CTL_ADD);
    watch(data_poll_.get(), one.data->fd(), peer, false, EPOLL_CTL_ADD);
  }
}

void Switchboard::watch(int poll, int fd, int peer, bool write, int operation) const {
  epoll_event event{};
  event.events = EPOLLIN | (write ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = static_cast<std::uint64_t>(peer);
  if (::epoll_ctl(poll, operation, fd, &event) != 0) throw_errno("watch a connection");
}

// A control channel that fails is the end of its peer.
template <class Use>
void Switchboard::with_control(int peer, const Use& use) {
  const std::unique_ptr<Link>& link = line(peer).control;
  if (!link) return;
  const bool had_unsent = link->has_unsent();
  try {
    use(*link);
    if (link && link->has_unsent() != had_unsent)
      watch(control_poll_.get(), link->fd(), peer, link->has_unsent(), EPOLL_CTL_MOD);
  } catch (const net::ConnectionLost&) {
    serve_data(peer);  // what it said last may be that it leaves
    lose(peer, Health::dead);
  } catch (const net::BadFrame& error) {
    give_up(peer, error);
  }
}

// Runs `use(link)` if there is a socket; one that fails is to be made again.
template <class Use>
void Switchboard::with_data(int peer, const Use& use) {
  const std::unique_ptr<LastingLink>& link = line(peer).data;
  if (!link) return;
  const bool had_unsent = link->wants_to_send();
  try {
    use(*link);
    if (link && link->connected() && link->wants_to_send() != had_unsent)
      watch(data_poll_.get(), link->fd(), peer, link->wants_to_send(), EPOLL_CTL_MOD);
    reset_if_asked(peer);
  } catch (const net::ConnectionLost&) {
    break_off(peer);
  } catch (const net::BadFrame& error) {
    give_up(peer, error);
  }
}

void Switchboard::give_up(int peer, const net::BadFrame& error) {
  log::warn(rank_, fmt::format("rank {} is given up, because it sent {}", peer, error.what()));
  lose(peer, Health::dead);
}

void Switchboard::reset_if_asked(int peer) {
  const std::unique_ptr<LastingLink>& link = line(peer).data;
  if (options_.reset_after_bytes == 0 || !link || !link->connected()) return;
  if (link->received_on_socket() < options_.reset_after_bytes) return;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(link->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  break_off(peer);
}

void Switchboard::break_off(int peer) {
  Line& one = line(peer);
  if (one.broken || !one.data) return;
  one.broken = Clock::now();
  try {
    take_all(peer, *one.data);  // what had arrived need not be sent again
  } catch (const Error&) {
  }
  if (!one.data) return;
  one.data->drop_socket();
  serve_control(peer);  // a process that has ended has closed both
  if (line(peer).health != Health::alive) return;
  log::info(rank_, fmt::format("the connection to rank {} was lost and is made again", peer));
  callbacks_.broken(peer);
}

void Switchboard::renew(int peer, std::unique_ptr<net::Stream> data) {
  Line& one = line(peer);
  if (one.health != Health::alive) return;
  if (!data) return lose(peer, Health::dead);
  // The peer may have noticed the loss first.
  if (one.data->connected()) one.data->drop_socket();
  one.broken.reset();
  try {
    one.data->replace_socket(std::move(data));
    watch(data_poll_.get(), one.data->fd(), peer, one.data->wants_to_send(), EPOLL_CTL_ADD);
  } catch (const net::ConnectionLost&) {
    break_off(peer);
  }
}

void Switchboard::notice_broken(Clock::time_point now) {
  for (int peer = 0; peer < size(); ++peer) {
    const auto& broken = line(peer).broken;
    if (line(peer).health == Health::alive && broken && now - *broken > kRepairLimit) lose(peer, Health::dead);
  }
}

void Switchboard::send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  with_data(to, [&](LastingLink& link) { link.send(head, body); });
}

void Switchboard::send_control(int to, std::span<const std::byte> frame) {
  if (line(to).health != Health::alive) return;
  with_control(to, [&](Link& link) { link.send(frame); });
}

bool Switchboard::pump(const Fd& poll, bool data) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const int peer = static_cast<int>(events[static_cast<std::size_t>(i)].data.u64);
    data ? serve_data(peer) : serve_control(peer);
  }
  return count > 0;
}

void Switchboard::serve_data(int peer) {
  with_data(peer, [&](LastingLink& link) {
    link.flush();
    take_all(peer, link);
    if (line(peer).data) link.flush();
  });
}

void Switchboard::serve_control(int peer) {
  if (line(peer).health != Health::alive) return;
  with_control(peer, [&](Link& link) {
    link.flush();
    take_all(peer, link);
  });
}

template <class AnyLink>
void Switchboard::take_all(int peer, AnyLink& link) {
  while (const auto frame = link.receive()) {
    line(peer).heard = Clock::now();
    callbacks_.heard(peer, unpack(*frame, size()));
    if (line(peer).health != Health::alive) return;  // it has left, and `link` is gone
  }
}

void Switchboard::note_left(int peer) {
  try {
    if (line(peer).control) take_all(peer, *line(peer).control);  // it may have said before how the world ended
  } catch (const Error&) {                                        // it has closed it already
  }
  lose(peer, Health::left);
}

void Switchboard::lose(int peer, Health health) {
  Line& one = line(peer);
  if (one.health != Health::alive) return;
  one.health = health;
  // One that may live is not heard any more, and is told the end.
  const bool may_live = health == Health::stopped || health == Health::unreachable;
  if (may_live && one.control) ::epoll_ctl(control_poll_.get(), EPOLL_CTL_DEL, one.control->fd(), nullptr);
  if (!may_live) one.control.reset();
  one.data.reset();
  callbacks_.lost(peer);
}

void Switchboard::beat() {
  const auto frame = pack(Heartbeat{}, options_.self.epoch);
  for (int to = 0; to < size(); ++to) send_control(to, frame);
}

void Switchboard::notice_silence(Clock::time_point now) {
  for (int peer = 0; peer < size(); ++peer) {
    Line& one = line(peer);
    if (peer == rank_ || one.health != Health::alive || now - one.heard <= options_.silence) continue;
    const bool host_answers = one.control && !one.control->has_unsent() && !one.control->is_unacknowledged();
    lose(peer, host_answers ? Health::stopped : Health::unreachable);
  }
}

void Switchboard::grant_time(Clock::duration time) {
  for (Line& one : lines_) one.heard += time;
}

void Switchboard::tell_lost(std::span<const std::byte> frame) {
  for (Line& one : lines_) {
    if (one.health == Health::alive || !one.control) continue;
    try {
      one.control->send(frame);
    } catch (const net::ConnectionLost&) {
    }
    one.control.reset();
  }
}

bool Switchboard::has_unsent() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& one) { return one.data && one.data->connected() && one.data->has_unsent(); });
}

bool Switchboard::is_on_its_way() const {
  return std::any_of(lines_.begin(), lines_.end(), [](const Line& one) {
    return one.data && (one.data->has_unsent() || one.data->is_unacknowledged());
  });
}

}  // namespace lockstep::transport::tcp
