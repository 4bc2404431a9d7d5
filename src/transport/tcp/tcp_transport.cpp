#include "transport/tcp/tcp_transport.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.hpp"
#include "transport/tcp/agreement.hpp"
#include "transport/tcp/link.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport {
namespace {

using namespace tcp;
using net::Clock;

constexpr auto kKeeperPause = std::chrono::milliseconds(50);  // while others look after the sockets
constexpr auto kFarewell = std::chrono::seconds(1);           // for what is on its way when a rank leaves
constexpr auto kAgreementLimit = std::chrono::seconds(10);    // far more than it takes to notice a death

std::uint64_t token_of_process() {
  static const std::uint64_t token = [] {
    std::uint64_t number = 0;
    std::memcpy(&number, net::random_nonce().data(), sizeof number);
    return number;
  }();
  return token;
}

Fd make_bell() {
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) throw_errno("make a bell");
  return bell;
}

void strike(const Fd& bell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(bell.get(), &one, sizeof one);  // it can only be struck already
}

void silence(const Fd& bell) {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(bell.get(), &count, sizeof count);
}

// Bytes of a message as they come.
struct Arriving {
  std::vector<std::byte> bytes;
  std::uint64_t total = 0;

  bool complete() const { return bytes.size() == total; }
};

using NoticePtr = std::shared_ptr<const Notice>;

struct Peer {
  std::unique_ptr<Link> control;
  std::unique_ptr<Link> data;
  Health health = Health::alive;
  Clock::time_point heard;
  Hello hello;
  std::uint64_t notices = 0;  // so far
  std::deque<std::pair<std::uint64_t, NoticePtr>> unread;
  std::map<std::uint64_t, NoticePtr> held;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Arriving> messages;
  Declaration declaration;
};

class TcpTransport final : public Transport, private Messages {
 public:
  TcpTransport(const TcpOptions& options, std::vector<PeerStreams> streams)
      : options_(options),
        rank_(static_cast<int>(options.self.rank)),
        poll_(::epoll_create1(EPOLL_CLOEXEC)),
        keeper_bell_(make_bell()),
        peers_(streams.size()),
        agreement_(rank_, static_cast<int>(streams.size())) {
    if (!poll_) throw_errno("watch connections");
    const Hello hello{.process = static_cast<std::uint64_t>(::getpid()), .token = token_of_process()};
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (static_cast<int>(i) == rank_) continue;
      Peer& one = peers_[i];
      one.control = std::make_unique<Link>(std::move(streams[i].control), epoch(), options.silence);
      one.data = std::make_unique<Link>(std::move(streams[i].data), epoch(), options.silence);
      one.heard = Clock::now();
      watch(*one.control, 2 * i, EPOLL_CTL_ADD);
      watch(*one.data, 2 * i + 1, EPOLL_CTL_ADD);
      send_data(static_cast<int>(i), pack(hello, epoch()));
    }
    keeper_ = std::thread([this] { keep(); });
  }

  // Without `leave` its connections just end: it has died, as far as its peers can tell.
  ~TcpTransport() override {
    {
      std::unique_lock lock(mutex_);
      if (left_) say_farewell(lock);
      ending_ = true;
      keeper_wake_.notify_all();
    }
    strike(keeper_bell_);
    keeper_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Messages* messages() override { return this; }

  std::optional<std::uint64_t> post(const Notice& notice) override {
    std::lock_guard lock(mutex_);
    const auto frame = pack(notice, epoch());
    for (int to = 0; to < size(); ++to) send_data(to, frame);
    return posted_++;
  }

  NoticeRef next(int from) override {
    std::lock_guard lock(mutex_);
    Peer& one = peer(from);
    if (one.unread.empty()) pump();
    if (one.unread.empty()) return {};
    const auto [position, notice] = std::move(one.unread.front());
    one.unread.pop_front();
    one.held.emplace(position, notice);
    return {.head = &notice->head, .detail = &notice->detail, .position = position};
  }

  void release(int from, std::uint64_t position) override {
    std::lock_guard lock(mutex_);
    peer(from).held.erase(position);
  }

  void send(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    std::lock_guard lock(mutex_);
    const std::uint64_t total = data.size();
    do {
      const auto bytes = data.first(std::min(data.size(), kPieceBytes));
      data = data.subspan(bytes.size());
      const Piece piece{.operation = operation, .part = part, .total = total, .data = bytes};
      send_data(to, pack_piece_head(piece, epoch()), bytes);
    } while (!data.empty());
  }

  bool receive(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) override {
    std::lock_guard lock(mutex_);
    auto& messages = peer(from).messages;
    auto found = messages.find({operation, part});
    if (found == messages.end() || !found->second.complete()) {
      pump();
      found = messages.find({operation, part});
    }
    if (found == messages.end() || !found->second.complete()) return false;
    const auto& bytes = found->second.bytes;
    if (bytes.size() != data.size()) {
      throw Error(ErrorCode::internal,
                  fmt::format("rank {} sent {} bytes where {} were expected", from, bytes.size(), data.size()));
    }
    if (!data.empty()) std::memcpy(data.data(), bytes.data(), data.size());
    messages.erase(found);
    return true;
  }

  void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) override {
    const std::shared_ptr<Fd> bell = lie_down();
    if (!work_appeared()) {
      pollfd waits[] = {{.fd = poll_.get(), .events = POLLIN, .revents = 0},
                        {.fd = bell->get(), .events = POLLIN, .revents = 0}};
      const auto seconds = std::chrono::floor<std::chrono::seconds>(limit);
      const timespec time{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
      ::ppoll(waits, 2, &time, nullptr);
    }
    std::lock_guard lock(mutex_);
    std::erase(sleeping_, bell);
    silence(*bell);
    spare_bells_.push_back(bell);
    pump();
  }

  // Another rank wakes up from what reaches it.
  void ring(int to) override {
    std::lock_guard lock(mutex_);
    if (to == rank_) ring_here();
  }
  void ring_everybody() override { ring(rank_); }

  Health health(int of) override {
    std::lock_guard lock(mutex_);
    if (of == rank_) return left_ ? Health::left : Health::alive;
    return peer(of).health;
  }

  long process_of(int of) const override {
    std::lock_guard lock(mutex_);
    return of == rank_ ? ::getpid() : static_cast<long>(peers_[static_cast<std::size_t>(of)].hello.process);
  }

  void pronounce(const Verdict& verdict) override {
    std::unique_lock lock(mutex_);
    settle(lock, verdict);
    // The others may be out of reach of each other; this rank's world has ended all the same.
    if (!agreement_.words().verdict) own_verdict_ = verdict;
    ring_here();
  }

  std::optional<Verdict> verdict() const override {
    std::lock_guard lock(mutex_);
    return agreement_.words().verdict ? agreement_.words().verdict : own_verdict_;
  }

  std::uint64_t seat(int of) override {
    std::lock_guard lock(mutex_);
    return agreement_.words().seats[static_cast<std::size_t>(of)];
  }

  bool change_seat(int of, std::uint64_t expected, std::uint64_t desired) override {
    std::unique_lock lock(mutex_);
    return settle(lock, ChangeSeat{.seat = static_cast<std::uint32_t>(of), .expected = expected, .desired = desired});
  }

  void declare(const Standstill& standstill, std::span<const pid_t> threads) override {
    std::lock_guard lock(mutex_);
    own_declaration_ = {.standstill = standstill, .threads = {threads.begin(), threads.end()}};
    const auto frame = pack(own_declaration_, epoch());
    for (int to = 0; to < size(); ++to) send_data(to, frame);
  }

  Standstill standstill(int of) override {
    std::lock_guard lock(mutex_);
    return of == rank_ ? own_declaration_.standstill : peer(of).declaration.standstill;
  }

  std::string doing(int of) override { return standstill(of).doing; }

  std::vector<pid_t> threads_here(int of) override {
    std::lock_guard lock(mutex_);
    if (of == rank_) return own_declaration_.threads;
    if (peer(of).hello.token != token_of_process()) return {};
    return peer(of).declaration.threads;
  }

  void quiesce() override {}  // nobody but this rank ever touches its memory

  void arrive() override {}
  void leave() override {
    std::lock_guard lock(mutex_);
    left_ = true;
    for (int to = 0; to < size(); ++to) send_data(to, pack(Left{}, epoch()));
    ring_here();
  }

 private:
  std::uint32_t epoch() const { return options_.self.epoch; }

  // All below: REQUIRES mutex_.
  Peer& peer(int of) { return peers_[static_cast<std::size_t>(of)]; }

  void watch(const Link& link, std::uint64_t id, int operation) const {
    epoll_event event{};
    event.events = EPOLLIN | (link.has_unsent() ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
    event.data.u64 = id;
    if (::epoll_ctl(poll_.get(), operation, link.fd(), &event) != 0) throw_errno("watch a connection");
  }

  // Runs `use(link)`; a link that fails is the end of its peer.
  template <class Use>
  void with_link(int of, bool data, const Use& use) {
    Peer& one = peer(of);
    const std::unique_ptr<Link>& link = data ? one.data : one.control;
    if (of == rank_ || !link) return;
    const bool had_unsent = link->has_unsent();
    try {
      use(*link);
      if (link && link->has_unsent() != had_unsent)
        watch(*link, 2 * static_cast<std::uint64_t>(of) + (data ? 1 : 0), EPOLL_CTL_MOD);
    } catch (const net::ConnectionLost&) {
      lose(of, data);
    } catch (const net::BadFrame& error) {
      log::warn(rank_, fmt::format("rank {} is given up, because it sent {}", of, error.what()));
      lose(of, true);
    }
  }

  void send_data(int to, std::span<const std::byte> head, std::span<const std::byte> body = {}) {
    with_link(to, true, [&](Link& link) { link.send(head, body); });
  }

  // Takes what has arrived and sends what could not be sent before.
  void pump() {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      serve(static_cast<int>(id / 2), id % 2 == 1);
    }
    send_agreement();
    if (count > 0) ring_here();
  }

  void serve(int of, bool data) {
    with_link(of, data, [&](Link& link) {
      link.flush();
      take_all(of, link);
    });
    // What it said last may have been that it leaves.
    if (peer(of).health == Health::left) close(of);
  }

  void take_all(int of, Link& link) {
    while (const auto frame = link.receive()) {
      peer(of).heard = Clock::now();
      take(of, unpack(*frame, size()));
    }
  }

  void take(int from, Said said) {
    Peer& one = peer(from);
    if (auto* notice = std::get_if<Notice>(&said)) {
      one.unread.emplace_back(one.notices++, std::make_shared<const Notice>(*notice));
    } else if (auto* piece = std::get_if<Piece>(&said)) {
      take_piece(one, *piece);
    } else if (auto* declaration = std::get_if<Declaration>(&said)) {
      one.declaration = std::move(*declaration);
    } else if (auto* message = std::get_if<Message>(&said)) {
      agreement_.deliver(from, *message);
    } else if (auto* hello = std::get_if<Hello>(&said)) {
      one.hello = *hello;
    } else if (std::holds_alternative<Left>(said)) {
      one.health = Health::left;
      agreement_.lose(from);
    }
  }

  static void take_piece(Peer& from, const Piece& piece) {
    Arriving& message = from.messages[{piece.operation, piece.part}];
    if (message.bytes.empty()) message.total = piece.total;
    if (message.total != piece.total || piece.data.size() > message.total - message.bytes.size())
      throw net::BadFrame("a piece that does not fit its message");
    message.bytes.insert(message.bytes.end(), piece.data.begin(), piece.data.end());
  }

  // One of its connections is gone. What had arrived by the other is taken first: it may have left in good order.
  void lose(int of, bool by_data) {
    Peer& one = peer(of);
    if (!by_data && one.data) {
      try {
        take_all(of, *one.data);
      } catch (const Error&) {
      }
    }
    if (one.health == Health::alive) one.health = Health::dead;
    close(of);
    agreement_.lose(of);
    ring_here();
  }

  void close(int of) {
    peer(of).control.reset();
    peer(of).data.reset();
  }

  void send_agreement() {
    for (auto messages = agreement_.take_outgoing(); !messages.empty(); messages = agreement_.take_outgoing()) {
      for (const auto& [to, message] : messages) {
        const auto frame = pack(message, epoch());
        with_link(to, false, [&](Link& link) { link.send(frame); });
      }
    }
  }

  // Asks for a change and waits for the answer. False also when none comes.
  bool settle(std::unique_lock<std::mutex>& lock, const Command& command) {
    const std::uint64_t request = agreement_.propose(command);
    const auto deadline = Clock::now() + kAgreementLimit;
    for (;;) {
      send_agreement();
      pump();
      if (const auto result = agreement_.result(request)) return *result;
      if (Clock::now() >= deadline) return false;
      const int fd = poll_.get();
      lock.unlock();
      net::wait_for(fd, POLLIN, Clock::now() + std::chrono::milliseconds(10));
      lock.lock();
    }
  }

  std::shared_ptr<Fd> lie_down() {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Fd> bell;
    if (spare_bells_.empty()) {
      bell = std::make_shared<Fd>(make_bell());
    } else {
      bell = spare_bells_.back();
      spare_bells_.pop_back();
    }
    sleeping_.push_back(bell);
    return bell;
  }

  void ring_here() {
    for (const auto& bell : sleeping_) strike(*bell);
  }

  // The keeper's thread.
  void keep() {
    std::unique_lock lock(mutex_);
    auto looked = Clock::now();
    auto beaten = Clock::time_point{};
    while (!ending_) {
      const auto now = Clock::now();
      if (now - looked > options_.silence / 4) grant_time(now - looked);
      looked = now;
      if (now - beaten >= options_.heartbeat) {
        beaten = now;
        beat();
        notice_silence(now);
      }
      const auto pause = std::min<Clock::duration>(beaten + options_.heartbeat - now, options_.heartbeat);
      if (!sleeping_.empty()) {
        // By the system clock, because the thread sanitizer of gcc 12 does not know the call behind the steady one.
        const auto until = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(
                                                                  std::min<Clock::duration>(pause, kKeeperPause));
        keeper_wake_.wait_until(lock, until, [this] { return ending_; });
        continue;
      }
      pollfd waits[] = {{.fd = poll_.get(), .events = POLLIN, .revents = 0},
                        {.fd = keeper_bell_.get(), .events = POLLIN, .revents = 0}};
      lock.unlock();
      ::poll(waits, 2, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(pause).count()));
      lock.lock();
      pump();
    }
  }

  void beat() {
    const auto frame = pack(Heartbeat{}, epoch());
    for (int to = 0; to < size(); ++to) with_link(to, false, [&](Link& link) { link.send(frame); });
  }

  void notice_silence(Clock::time_point now) {
    pump();
    for (int of = 0; of < size(); ++of) {
      Peer& one = peer(of);
      if (of != rank_ && one.health == Health::alive && now - one.heard > options_.silence) lose(of, true);
    }
  }

  // This rank did not run for a while: it cannot tell whether others did.
  void grant_time(Clock::duration time) {
    for (Peer& one : peers_) one.heard += time;
  }

  // Until what was sent has reached the peers' systems; after that closing the connection cannot take it back.
  void say_farewell(std::unique_lock<std::mutex>& lock) {
    const auto deadline = Clock::now() + kFarewell;
    const auto is_on_its_way = [](const Peer& one) {
      return one.data && (one.data->has_unsent() || one.data->is_unacknowledged());
    };
    while (std::any_of(peers_.begin(), peers_.end(), is_on_its_way) && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
      pump();
    }
  }

  const TcpOptions options_;
  const int rank_;
  const Fd poll_;
  const Fd keeper_bell_;
  mutable std::mutex mutex_;
  std::condition_variable keeper_wake_;
  // All below is protected by mutex_.
  std::vector<Peer> peers_;  // by rank; this rank's is empty
  Agreement agreement_;
  std::optional<Verdict> own_verdict_;
  Declaration own_declaration_;
  std::uint64_t posted_ = 0;
  std::vector<std::shared_ptr<Fd>> sleeping_;  // the bells of those who sleep
  std::vector<std::shared_ptr<Fd>> spare_bells_;
  bool left_ = false;
  bool ending_ = false;
  std::thread keeper_;
};

}  // namespace

TcpDoor::TcpDoor(const TcpOptions& options) : options_(options), mesh_(std::make_unique<tcp::Mesh>(options)) {}
TcpDoor::~TcpDoor() = default;
TcpDoor::TcpDoor(TcpDoor&&) noexcept = default;

const net::Address& TcpDoor::address() const { return mesh_->address(); }

std::unique_ptr<Transport> TcpDoor::connect(TcpDoor door, const std::vector<net::Address>& addresses,
                                            net::Clock::time_point deadline) {
  return std::make_unique<TcpTransport>(door.options_, door.mesh_->connect(addresses, deadline));
}

}  // namespace lockstep::transport
