#include "net/gate.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"

namespace lockstep::net {
namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr int kMostAtOnce = 256;  // a flood must not keep `step` from coming back

}  // namespace

Gate::Gate(House house, const GateOptions& options)
    : house_(std::move(house)),
      options_(options),
      listener_(options.listener ? options.listener : std::make_shared<Listener>(options.address)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!poll_) throw_errno("watch sockets");
  listener_->open();
  house_.data_key = [this](const Identity& identity) -> std::optional<Digest> {
    const auto found = data_keys_.find(identity.from);
    return found == data_keys_.end() ? std::nullopt : std::optional(found->second);
  };
  watch(listener_->fd(), kListenerId, false, false);
}

Gate::~Gate() { listener_->close(); }

void Gate::watch(int fd, std::uint64_t id, bool write, bool again) const {
  epoll_event event{};
  event.events = write ? EPOLLOUT : EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(poll_.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("watch a socket");
}

Clock::time_point Gate::next_deadline() const {
  return knocks_.empty() ? Clock::time_point::max() : knocks_.begin()->second->deadline();
}

Gate::News Gate::step() {
  News news;
  std::array<epoll_event, kMostAtOnce> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), kMostAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    if (id == kListenerId) {
      let_knock(news);
    } else if (auto knock = knocks_.find(id); knock != knocks_.end()) {
      go_on(knock, news);
    }
  }
  drop_late();
  say(log_.due(Clock::now()));
  return news;
}

void Gate::let_knock(News& news) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    auto socket = listener_->accept();
    if (!socket) return;
    make_room();
    const std::uint64_t id = next_id_++;
    auto knock = std::make_unique<Knock>(house_, std::move(*socket), Clock::now() + options_.patience);
    watch(knock->fd(), id, false, false);
    go_on(knocks_.emplace(id, std::move(knock)).first, news);  // often its first bytes are there already
  }
}

void Gate::make_room() {
  if (knocks_.size() < options_.most_strangers) return;
  auto victim = std::find_if(knocks_.begin(), knocks_.end(), [](const auto& item) { return item.second->silent(); });
  if (victim == knocks_.end()) victim = knocks_.begin();
  refuse(victim, "too many came at once, and it had not proved the job's key");
}

void Gate::go_on(Knocks::iterator item, News& news) {
  Knock& knock = *item->second;
  const int fd = knock.fd();
  const bool wrote = knock.wants_write();
  auto outcome = knock.step();
  if (std::holds_alternative<Knock::Waiting>(outcome)) {
    if (knock.wants_write() != wrote) watch(fd, item->first, knock.wants_write(), true);
    return;
  }
  if (auto* stranger = std::get_if<Stranger>(&outcome)) return refuse(item, stranger->why);
  ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (auto* arrival = std::get_if<Arrival>(&outcome)) {
    if (arrival->identity.use == Use::control) data_keys_[arrival->identity.from] = arrival->data_key;
    news.arrivals.push_back(std::move(*arrival));
  }
  if (auto* turned_away = std::get_if<TurnedAway>(&outcome)) news.turned_away.push_back(std::move(*turned_away));
  knocks_.erase(item);
}

void Gate::refuse(Knocks::iterator knock, const std::string& why) {
  say(log_.add(knock->second->from(), why, Clock::now()));
  knocks_.erase(knock);  // closes its descriptor, which is then watched no longer
}

void Gate::drop_late() {
  const auto now = Clock::now();
  while (!knocks_.empty() && knocks_.begin()->second->deadline() <= now)
    refuse(knocks_.begin(), "it did not prove the job's key in time");
}

void Gate::say(const std::optional<std::string>& line) const {
  if (line) log::warn(static_cast<int>(house_.self.rank), *line);
}

}  // namespace lockstep::net
