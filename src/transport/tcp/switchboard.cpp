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

constexpr auto kRepairLimit = std::chrono::seconds(3);  // then a peer with which there is no connection again is lost
constexpr auto kCallInterval = std::chrono::milliseconds(100);  // while its connections are broken

Fd make_poll() {
  Fd poll(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll) throw_errno("watch connections");
  return poll;
}

// Whether several connections lead into the port of a host.
bool ports_are_shared(const std::vector<int>& hosts) {
  const bool spans_hosts = std::any_of(hosts.begin(), hosts.end(), [&](int host) { return host != hosts.front(); });
  return spans_hosts && hosts.size() > 2;
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
    one.control = std::make_unique<LastingLink>(std::move(both.control), options.self.epoch);
    one.data = std::make_unique<LastingLink>(std::move(both.data), options.self.epoch);
    one.data->place(kind_of_pieces(), kPieceHeadBytes, [this, peer](std::span<const std::byte> head, std::size_t rest) {
      return callbacks_.place(peer, unpack_piece_head(head), rest);
    });
    one.data->place(kind_of_notices(), kNoticeHeadBytes, [this, peer](std::span<const std::byte>, std::size_t rest) {
      return callbacks_.place_attached(peer, rest);
    });
    if (is_on_this_host(peer) || ports_are_shared(options.hosts)) one.data->share_evenly();
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

const Fd& Switchboard::poll_of(Which which) const { return which == &Line::data ? data_poll_ : control_poll_; }

// Runs `use(link)` if there is a socket; one that fails is to be made again.
template <class Use>
void Switchboard::with_link(int peer, Which which, const Use& use) {
  const std::unique_ptr<LastingLink>& link = line(peer).*which;
  if (!link) return;
  const bool had_unsent = link->wants_to_send();
  try {
    use(*link);
    if (link && link->connected() && link->wants_to_send() != had_unsent)
      watch(poll_of(which).get(), link->fd(), peer, link->wants_to_send(), EPOLL_CTL_MOD);
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
  // What had arrived need not be sent again, and its last words may be that it leaves.
  take_rest(peer, &Line::data);
  take_rest(peer, &Line::control);
  if (one.health != Health::alive) return;
  // It hangs up, as it knows that this rank leaves; unless nothing came from it for a while, so that it may not.
  if (leaving_ && (one.broken || !is_quiet(peer))) return lose(peer, Health::left);
  one.data->drop_socket();
  one.control->drop_socket();
  if (one.broken) return;  // it is being called, or the last connections brought nothing: it is called after a while
  one.broken = one.called = Clock::now();
  log::info(rank_, fmt::format("the connections to rank {} were lost and are made again", peer));
  callbacks_.broken(peer);
}

void Switchboard::renew(int peer, PeerStreams streams) {
  if (line(peer).health != Health::alive) return;
  try {
    replace(peer, &Line::control, std::move(streams.control));
    replace(peer, &Line::data, std::move(streams.data));
  } catch (const net::ConnectionLost&) {
    break_off(peer);
  }
}

// The peer may have noticed the loss first: then there is still the old socket.
void Switchboard::replace(int peer, Which which, std::unique_ptr<net::Stream> stream) {
  LastingLink& link = *(line(peer).*which);
  if (link.connected()) link.drop_socket();
  link.replace_socket(std::move(stream));
  watch(poll_of(which).get(), link.fd(), peer, link.wants_to_send(), EPOLL_CTL_ADD);
}

void Switchboard::note_gone(int peer) { lose(peer, Health::dead); }

void Switchboard::notice_broken(Clock::time_point now) {
  for (int peer = 0; peer < size(); ++peer) {
    Line& one = line(peer);
    if (one.health != Health::alive || !one.broken) continue;
    if (now - *one.broken > kRepairLimit) {
      lose(peer, Health::unreachable);
    } else if (!one.data->connected() && now - one.called >= kCallInterval) {
      one.called = now;
      callbacks_.broken(peer);
    }
  }
}

void Switchboard::send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body,
                            std::uint64_t operation) {
  with_link(to, &Line::data, [&](LastingLink& link) { link.send(head, body, operation); });
}

void Switchboard::lend_data(int to, std::span<const std::byte> head, std::span<const std::byte> body,
                            std::uint64_t operation) {
  with_link(to, &Line::data, [&](LastingLink& link) { link.lend(head, body, operation); });
}

void Switchboard::give_back(std::uint64_t operation) {
  Copies copies;
  for (Line& one : lines_) {
    if (one.data) one.data->give_back(operation, copies);
  }
}

void Switchboard::abandon(std::uint64_t operation) {
  for (int peer = 0; peer < size(); ++peer) {
    with_link(peer, &Line::data, [&](LastingLink& link) { link.abandon(operation); });
  }
}

bool Switchboard::has_sent(std::uint64_t operation) const {
  return std::all_of(lines_.begin(), lines_.end(),
                     [&](const Line& one) { return !one.data || one.data->has_sent(operation); });
}

void Switchboard::take_back(int from, std::span<const std::byte> range) {
  if (line(from).data) line(from).data->take_back(range);
}

void Switchboard::send_control(int to, std::span<const std::byte> frame) {
  if (line(to).health != Health::alive) return;
  with_link(to, &Line::control, [&](LastingLink& link) { link.send(frame); });
}

// Asking the sockets themselves costs no more than asking which of them has something, unless there are many.
bool Switchboard::pump_data() {
  constexpr int kFew = 4;
  if (size() > kFew) return pump(&Line::data);
  bool any = false;
  for (int peer = 0; peer < size(); ++peer) any |= serve(peer, &Line::data);
  return any;
}

bool Switchboard::pump(Which which) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_of(which).get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) serve(static_cast<int>(events[static_cast<std::size_t>(i)].data.u64), which);
  return count > 0;
}

bool Switchboard::serve(int peer, Which which) {
  bool any = false;
  if (line(peer).health != Health::alive) return any;
  with_link(peer, which, [&](LastingLink& link) {
    any = true;  // the end of a connection is news, and so is what came right before it
    link.flush();
    any = take_batch(peer, link);
    if (line(peer).*which) link.flush();
  });
  return any;
}

// After a notice the engine has its turn: it may know where what follows belongs.
bool Switchboard::take_batch(int peer, LastingLink& link) {
  const std::uint64_t before = link.bytes_read();
  link.begin_batch();
  while (const auto frame = link.receive()) {
    line(peer).heard = Clock::now();
    line(peer).broken.reset();
    Said said = unpack(*frame, size());
    if (std::holds_alternative<Announcement>(said)) link.end_batch();
    callbacks_.heard(peer, said);
    if (line(peer).health != Health::alive) return true;  // it has left, and `link` is gone
  }
  return link.bytes_read() != before;
}

void Switchboard::take_rest(int peer, Which which) {
  try {
    while (line(peer).*which && take_batch(peer, *(line(peer).*which))) {
    }
  } catch (const Error&) {  // that is the end of it
  }
}

void Switchboard::note_left(int peer) {
  take_rest(peer, &Line::control);  // it may have said before how the world ended
  lose(peer, Health::left);
}

void Switchboard::lose(int peer, Health health) {
  Line& one = line(peer);
  if (one.health != Health::alive) return;
  one.health = health;
  // One that may live is not heard any more, and is told the end.
  const bool may_live = health == Health::stopped || health == Health::unreachable;
  if (may_live && one.control->connected()) ::epoll_ctl(control_poll_.get(), EPOLL_CTL_DEL, one.control->fd(), nullptr);
  if (!may_live) one.control.reset();
  one.data.reset();
  callbacks_.lost(peer);
}

void Switchboard::beat() {
  const auto frame = pack(Heartbeat{}, options_.self.epoch);
  for (int to = 0; to < size(); ++to) {
    if (is_cut_off(to)) break_off(to);
    notice_swallowed(to);
    mind_losses(to);
    send_control(to, frame);
  }
}

// Heartbeats may get through where data does not: something on the way forgets connections, or drops large packets.
void Switchboard::notice_swallowed(int peer) {
  Line& one = line(peer);
  const auto now = Clock::now();
  if (!one.data || !one.data->is_swallowed(now, options_.silence / 2)) return;
  const bool again = now - one.swallowed < 2 * options_.silence && one.data->confirmed() == one.had;
  one.swallowed = now;
  one.had = one.data->confirmed();
  if (again) return lose(peer, Health::unreachable);
  log::warn(rank_, fmt::format("what is sent to rank {} does not arrive, though its heartbeats come: the connections "
                               "to it are made again",
                               peer));
  break_off(peer);
}

void Switchboard::mind_losses(int peer) {
  if (!line(peer).data || !line(peer).data->mind_losses()) return;
  log::info(rank_, fmt::format("the network loses part of what is sent to rank {}: from now on that goes by the "
                               "system's own congestion control",
                               peer));
}

// The last heartbeat has not even reached its host, and for a while nothing has come from there.
bool Switchboard::is_cut_off(int peer) const {
  const Line& one = lines_[static_cast<std::size_t>(peer)];
  return peer != rank_ && one.health == Health::alive && one.control->is_unacknowledged() && is_quiet(peer);
}

bool Switchboard::is_on_this_host(int peer) const {
  const auto& hosts = options_.hosts;
  return hosts.empty() || hosts[static_cast<std::size_t>(peer)] == hosts[static_cast<std::size_t>(rank_)];
}

bool Switchboard::is_quiet(int peer) const {
  return Clock::now() - lines_[static_cast<std::size_t>(peer)].heard > options_.silence / 4;
}

void Switchboard::notice_silence(Clock::time_point now) {
  for (int peer = 0; peer < size(); ++peer) {
    Line& one = line(peer);
    if (peer == rank_ || one.health != Health::alive || now - one.heard <= options_.silence) continue;
    const LastingLink& control = *one.control;
    const bool host_answers = control.connected() && !control.has_unsent() && !control.is_unacknowledged();
    lose(peer, host_answers ? Health::stopped : Health::unreachable);
  }
}

void Switchboard::grant_time(Clock::duration time) {
  for (Line& one : lines_) {
    one.heard += time;
    if (one.broken) *one.broken += time;
  }
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

Network Switchboard::network(bool together) const {
  Network all;
  for (int peer = 0; peer < size(); ++peer) {
    const Line& one = lines_[static_cast<std::size_t>(peer)];
    if (!one.data || is_on_this_host(peer)) continue;
    const Network way = one.data->network();
    all.trip = std::max(all.trip, way.trip);
    all.rate = together ? all.rate + way.rate : std::max(all.rate, way.rate);
  }
  return all;
}

bool Switchboard::is_on_its_way() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& one) { return one.data && one.data->is_on_its_way(); });
}

}  // namespace lockstep::transport::tcp
