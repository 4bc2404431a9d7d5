#include "transport/tcp/tcp_transport.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/census.hpp"
#include "transport/tcp/agreement.hpp"
#include "transport/tcp/bells.hpp"
#include "transport/tcp/inbox.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/switchboard.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport {
namespace {

using namespace tcp;
using net::Clock;
using std::chrono::milliseconds;

constexpr auto kKeeperRound = milliseconds(100);
constexpr auto kBacklogRound = milliseconds(1);             // while data waits for room in a socket
constexpr auto kFarewell = std::chrono::seconds(1);         // for what is on its way when a rank leaves
constexpr auto kAgreementLimit = std::chrono::seconds(10);  // far more than it takes to notice a death

std::uint64_t token_of_process() {
  static const std::uint64_t token = [] {
    std::uint64_t number = 0;
    std::memcpy(&number, net::random_nonce().data(), sizeof number);
    return number;
  }();
  return token;
}

// What a peer has said, and the engine asks for.
struct Peer {
  Inbox inbox;
  Hello hello;
  Declaration declaration;
};

class TcpTransport final : public Transport, private Messages {
 public:
  TcpTransport(const TcpOptions& options, std::unique_ptr<Mesh> mesh, std::vector<PeerStreams> streams)
      : options_(options),
        rank_(static_cast<int>(options.self.rank)),
        mesh_(std::move(mesh)),
        peers_(streams.size()),
        agreement_(rank_, static_cast<int>(streams.size())),
        switchboard_(options, std::move(streams),
                     {.heard = [this](int from, Said said) { take(from, std::move(said)); },
                      .lost = [this](int peer) { agreement_.lose(peer); },
                      .broken =
                          [this](int peer) {
                            if (mesh_->calls(peer)) mesh_->call_again(peer, keeper_bell_);
                          }}) {
    const Hello hello{.process = static_cast<std::uint64_t>(::getpid()), .token = token_of_process()};
    send_to_all(pack(hello, epoch()));
    keeper_ = std::thread([this] { keep(); });
  }

  // Without `leave` its connections just end: it has died, as far as its peers can tell.
  ~TcpTransport() override {
    if (::getpid() != process_) {  // a forked child's copy: it has no keeper, and the connections are the parent's
      keeper_.detach();
      return;
    }
    {
      std::unique_lock lock(mutex_);
      if (left_) say_farewell(lock);
      ending_ = true;
    }
    keeper_bell_.strike();
    keeper_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Messages* messages() override { return this; }

  // --- notices and messages

  std::optional<std::uint64_t> post(const Notice& notice) override {
    std::lock_guard lock(mutex_);
    send_to_all(pack(notice, epoch()));
    return posted_++;
  }

  NoticeRef next(int from) override {
    std::lock_guard lock(mutex_);
    Inbox& inbox = peer(from).inbox;
    if (!inbox.has_notice()) pump();
    return inbox.has_notice() ? inbox.next() : NoticeRef{};
  }

  void release(int from, std::uint64_t position) override {
    std::lock_guard lock(mutex_);
    peer(from).inbox.release(position);
  }

  void send(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    std::lock_guard lock(mutex_);
    const std::uint64_t total = data.size();
    do {
      const auto bytes = data.first(std::min(data.size(), kPieceBytes));
      data = data.subspan(bytes.size());
      const Piece piece{.operation = operation, .part = part, .total = total, .data = bytes};
      switchboard_.send_data(to, pack_piece_head(piece, epoch()), bytes);
    } while (!data.empty());
    note_backlog();
  }

  bool receive(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) override {
    std::lock_guard lock(mutex_);
    Inbox& inbox = peer(from).inbox;
    if (!inbox.has_message(operation, part)) pump();
    if (!inbox.has_message(operation, part)) return false;
    inbox.take_message(operation, part, data);
    return true;
  }

  // --- sleeping

  void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) override {
    const Sleepers::BellPtr bell = lie_down();
    if (!work_appeared()) {
      pollfd waits[] = {{.fd = switchboard_.data_poll(), .events = POLLIN, .revents = 0},
                        {.fd = bell->fd(), .events = POLLIN, .revents = 0}};
      const auto seconds = std::chrono::floor<std::chrono::seconds>(limit);
      const timespec time{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
      ::ppoll(waits, 2, &time, nullptr);
    }
    std::lock_guard lock(mutex_);
    sleepers_.get_up(bell);
    pump();
  }

  // Another rank wakes up from what reaches it.
  void ring(int to) override {
    std::lock_guard lock(mutex_);
    if (to == rank_) sleepers_.wake_all();
  }
  void ring_everybody() override { ring(rank_); }

  // --- health, and what all see alike

  Health health(int of) override {
    std::lock_guard lock(mutex_);
    if (of == rank_) return left_ ? Health::left : Health::alive;
    return switchboard_.health(of);
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
    sleepers_.wake_all();
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

  // --- standing still. What is declared stays in order with notices, so whoever has read a version has read all
  // that was announced before it.

  void declare(const Standstill& standstill, std::span<const pid_t> threads) override {
    std::lock_guard lock(mutex_);
    own_declaration_ = {.standstill = standstill, .threads = {threads.begin(), threads.end()}};
    send_to_all(pack(own_declaration_, epoch()));
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

  std::optional<std::uint64_t> own_rounds() const override { return rounds_.load(); }

  void quiesce() override {}  // nobody but this rank ever touches its memory

  void arrive() override {}
  void leave() override {
    std::lock_guard lock(mutex_);
    left_ = true;
    send_to_all(pack(Left{}, epoch()));
    sleepers_.wake_all();
  }

 private:
  std::uint32_t epoch() const { return options_.self.epoch; }

  // All below: REQUIRES mutex_.
  Peer& peer(int of) { return peers_[static_cast<std::size_t>(of)]; }

  void send_to_all(const std::vector<std::byte>& frame) {
    for (int to = 0; to < size(); ++to) switchboard_.send_data(to, frame);
    note_backlog();
  }

  // What no socket takes is sent by whoever waits, or else by the keeper, which must know.
  void note_backlog() {
    const bool backlog = switchboard_.has_unsent();
    if (backlog && !backlog_) keeper_bell_.strike();
    backlog_ = backlog;
  }

  // Takes the data that has arrived and sends what could not be sent before.
  void pump() {
    pumped_ = Clock::now();
    if (switchboard_.pump_data()) after_news();
  }

  void pump_control() {
    if (switchboard_.pump_control()) after_news();
    send_agreement();
  }

  void after_news() {
    send_agreement();
    note_backlog();
    sleepers_.wake_all();
  }

  void take(int from, Said said) {
    Peer& one = peer(from);
    if (auto* notice = std::get_if<Notice>(&said)) {
      one.inbox.add(*notice);
    } else if (auto* piece = std::get_if<Piece>(&said)) {
      one.inbox.add(*piece);
    } else if (auto* declaration = std::get_if<Declaration>(&said)) {
      one.declaration = std::move(*declaration);
    } else if (auto* message = std::get_if<Message>(&said)) {
      agreement_.deliver(from, *message);
    } else if (auto* hello = std::get_if<Hello>(&said)) {
      one.hello = *hello;
    } else if (std::holds_alternative<Left>(said)) {
      switchboard_.note_left(from);
    }
  }

  void send_agreement() {
    for (auto messages = agreement_.take_outgoing(); !messages.empty(); messages = agreement_.take_outgoing()) {
      for (const auto& [to, message] : messages) switchboard_.send_control(to, pack(message, epoch()));
    }
    if (!agreement_.words().verdict) return;
    switchboard_.tell_lost(pack(Message(Snapshot{.words = agreement_.words()}), epoch()));
  }

  // Asks for a change and waits for the answer. False also when none comes.
  bool settle(std::unique_lock<std::mutex>& lock, const Command& command) {
    const std::uint64_t request = agreement_.propose(command);
    const auto deadline = Clock::now() + kAgreementLimit;
    for (;;) {
      pump_control();
      pump();
      if (const auto result = agreement_.result(request)) return *result;
      if (Clock::now() >= deadline) return false;
      lock.unlock();
      net::wait_for(switchboard_.control_poll(), POLLIN, Clock::now() + milliseconds(10));
      lock.lock();
    }
  }

  Sleepers::BellPtr lie_down() {
    std::lock_guard lock(mutex_);
    return sleepers_.lie_down();
  }

  // Until what was sent has reached the peers' systems; after that closing the connection cannot take it back.
  void say_farewell(std::unique_lock<std::mutex>& lock) {
    const auto deadline = Clock::now() + kFarewell;
    while (switchboard_.is_on_its_way() && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(milliseconds(1));
      lock.lock();
      pump();
    }
  }

  // --- the keeper's thread

  void keep() {
    leave_out_of_census(::gettid());
    {
      std::unique_lock lock(mutex_);
      auto beaten = Clock::time_point{};
      for (auto looked = Clock::now(); !ending_;) {
        const auto now = Clock::now();
        if (now - looked > options_.silence / 4) switchboard_.grant_time(now - looked);
        looked = now;
        if (now - beaten >= options_.heartbeat) {
          beaten = now;
          switchboard_.beat();
        }
        pump_control();
        renew_connections();
        if (now - pumped_ >= kKeeperRound) pump();  // a connection that nobody uses may be lost too
        switchboard_.notice_silence(now);
        switchboard_.notice_broken(now);
        send_agreement();
        wait_for_news(lock);
      }
    }
    return_to_census(::gettid());
  }

  void renew_connections() {
    for (Mesh::Renewed& one : mesh_->renewed()) {
      switchboard_.renew(one.peer, std::move(one.data));
      after_news();
    }
  }

  void wait_for_news(std::unique_lock<std::mutex>& lock) {
    // Somebody who has just looked will look again, and is better not disturbed.
    const bool sends_on = backlog_ && sleepers_.nobody() && Clock::now() - pumped_ > kBacklogRound;
    const auto longest = std::min(backlog_ ? kBacklogRound : kKeeperRound, options_.heartbeat);
    pollfd waits[] = {{.fd = switchboard_.control_poll(), .events = POLLIN, .revents = 0},
                      {.fd = keeper_bell_.fd(), .events = POLLIN, .revents = 0},
                      {.fd = mesh_->fd(), .events = POLLIN, .revents = 0},
                      {.fd = switchboard_.data_poll(), .events = POLLIN, .revents = 0}};
    lock.unlock();
    ++rounds_;
    ::poll(waits, sends_on ? 4 : 3, static_cast<int>(longest.count()));
    keeper_bell_.silence();
    lock.lock();
    if (sends_on) pump();
  }

  const TcpOptions options_;
  const int rank_;
  const pid_t process_ = ::getpid();
  const Bell keeper_bell_;
  const std::unique_ptr<Mesh> mesh_;       // the keeper's
  std::atomic<std::uint64_t> rounds_ = 0;  // of the keeper
  mutable std::mutex mutex_;
  // All below is protected by mutex_.
  std::vector<Peer> peers_;  // by rank; this rank's is empty
  Agreement agreement_;
  Switchboard switchboard_;
  std::optional<Verdict> own_verdict_;
  Declaration own_declaration_;
  std::uint64_t posted_ = 0;
  Sleepers sleepers_;
  Clock::time_point pumped_{};
  bool backlog_ = false;  // data waits for room in a socket
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
  auto streams = door.mesh_->connect(addresses, deadline);
  return std::make_unique<TcpTransport>(door.options_, std::move(door.mesh_), std::move(streams));
}

}  // namespace lockstep::transport
