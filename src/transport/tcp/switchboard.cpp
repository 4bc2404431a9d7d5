#include "transport/tcp/switchboard.hpp"

#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"

namespace lockstep::transport::tcp {
namespace {

using net::Clock;

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
    one.data = std::make_unique<Link>(std::move(both.data), options.self.epoch);
    one.heard = Clock::now();
    watch(*one.control, peer, false, EPOLL_CTL_ADD);
    watch(*one.data, peer, true, EPOLL_CTL_ADD);
  }
}

void Switchboard::watch(const Link& link, int peer, bool data, int operation) const {
  epoll_event event{};
  event.events = EPOLLIN | (link.has_unsent() ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = static_cast<std::uint64_t>(peer);
  if (::epoll_ctl((data ? data_poll_ : control_poll_).get(), operation, link.fd(), &event) != 0)
    throw_errno("watch a connection");
}

// Runs `use(link)`; a link that fails is the end of its peer.
template <class Use>
void Switchboard::with_link(int peer, bool data, const Use& use) {
  const std::unique_ptr<Link>& link = link_of(line(peer), data);
  if (!link) return;
  const bool had_unsent = link->has_unsent();
  try {
    use(*link);
    if (link && link->has_unsent() != had_unsent) watch(*link, peer, data, EPOLL_CTL_MOD);
  } catch (const net::ConnectionLost&) {
    take_rest(peer, !data);
    lose(peer, Health::dead);
  } catch (const net::BadFrame& error) {
    log::warn(rank_, fmt::format("rank {} is given up, because it sent {}", peer, error.what()));
    lose(peer, Health::dead);
  }
}

void Switchboard::send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  with_link(to, true, [&](Link& link) { link.send(head, body); });
}

void Switchboard::send_control(int to, std::span<const std::byte> frame) {
  if (line(to).health != Health::alive) return;
  with_link(to, false, [&](Link& link) { link.send(frame); });
}

bool Switchboard::pump(const Fd& poll, bool data) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) serve(static_cast<int>(events[static_cast<std::size_t>(i)].data.u64), data);
  return count > 0;
}

void Switchboard::serve(int peer, bool data) {
  with_link(peer, data, [&](Link& link) {
    link.flush();
    take_all(peer, link);
  });
}

void Switchboard::take_all(int peer, Link& link) {
  while (const auto frame = link.receive()) {
    line(peer).heard = Clock::now();
    callbacks_.heard(peer, unpack(*frame, size()));
    if (line(peer).health != Health::alive) return;  // it has left, and `link` may be gone
  }
}

// One of its connections is gone. On the other it may have said that it leaves, or how the world ended.
void Switchboard::take_rest(int peer, bool data) {
  const std::unique_ptr<Link>& link = link_of(line(peer), data);
  if (!link || line(peer).health != Health::alive) return;
  try {
    take_all(peer, *link);
  } catch (const Error&) {
  }
}

void Switchboard::note_left(int peer) {
  take_rest(peer, false);
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
  return std::any_of(lines_.begin(), lines_.end(), [](const Line& one) { return one.data && one.data->has_unsent(); });
}

bool Switchboard::is_on_its_way() const {
  return std::any_of(lines_.begin(), lines_.end(), [](const Line& one) {
    return one.data && (one.data->has_unsent() || one.data->is_unacknowledged());
  });
}

}  // namespace lockstep::transport::tcp
