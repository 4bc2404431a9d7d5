#include "transport/tcp/tcp_transport.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/census.hpp"
#include "base/log.hpp"
#include "transport/tcp/agreement.hpp"
#include "transport/tcp/bells.hpp"
#include "transport/tcp/mesh.hpp"
#include "transport/tcp/near_memory.hpp"
#include "transport/tcp/network_survey.hpp"
#include "transport/tcp/post_office.hpp"
#include "transport/tcp/switchboard.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport {
namespace {

using namespace tcp;
using net::Clock;
using std::chrono::milliseconds;

constexpr auto kKeeperRound = milliseconds(100);
constexpr auto kDataRound = milliseconds(1);                // while the keeper moves data
constexpr auto kFarewell = std::chrono::seconds(4);         // for what is on its way when a rank leaves
constexpr auto kAgreementLimit = std::chrono::seconds(10);  // far more than it takes to notice a death

// What a peer has said of itself.
struct Peer {
  Hello hello;
  bool is_in_reach = false;  // its memory
  Declaration declaration;
};

class TcpTransport final : public Transport, private Messages {
 public:
  TcpTransport(const TcpOptions& options, std::unique_ptr<Mesh> mesh, std::vector<PeerStreams> streams)
      : options_(options),
        rank_(static_cast<int>(options.self.rank)),
        mesh_(std::move(mesh)),
        peers_(streams.size()),
        office_(streams.size(), options.self.epoch),
        agreement_(rank_, static_cast<int>(streams.size())),
        survey_(options, streams.size()),
        switchboard_(options, std::move(streams),
                     {.heard = [this](int from, Said& said) { take(from, said); },
                      .place = [this](int from, const Piece& head,
                                      std::size_t bytes) { return office_.inbox(from).place_for(head, bytes); },
                      .place_attached =
                          [this](int from, std::size_t bytes) { return office_.inbox(from).place_for_attached(bytes); },
                      .lost = [this](int peer) { lose(peer); },
                      .broken = [this](int peer) { mesh_->call_again(peer, keeper_bell_); }}) {
    office_.use(switchboard_);
    const Hello hello{
        .process = static_cast<std::uint64_t>(::getpid()), .token = token_of_process(), .probe = probe_of_process()};
    send_to_all(pack(hello, epoch()));
    if (survey_.spans_hosts()) survey_.send_filler(switchboard_);
    note_backlog();
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

  int host_of(int rank) const override {
    return options_.hosts.empty() ? 0 : options_.hosts[static_cast<std::size_t>(rank)];
  }

  // --- notices and messages

  std::optional<std::uint64_t> post(const Notice& notice) override { return post_with(notice, {}); }

  std::optional<std::uint64_t> post_with(const Notice& notice, std::span<const std::byte> attached) override {
    std::lock_guard lock(mutex_);
    office_.post(notice, attached);
    note_backlog();
    return posted_++;
  }

  std::size_t most_attached() const override { return kMostAttached; }

  Network network() const override {
    std::lock_guard lock(mutex_);
    return survey_.network();
  }
  std::size_t bytes_per_trip() const override { return survey_.bytes_per_trip(); }
  std::chrono::nanoseconds answer_time() const override { return survey_.answer_time(); }
  std::uint64_t arrivals() const override { return arrivals_.load(std::memory_order_relaxed); }

  bool has_sent(std::uint64_t operation) override {
    std::lock_guard lock(mutex_);
    return switchboard_.has_sent(operation) && !office_.has_to_be_fetched(operation);
  }

  NoticeRef next(int from) override {
    std::lock_guard lock(mutex_);
    Inbox& inbox = office_.inbox(from);
    if (!inbox.has_notice() && office_.is_asked_again(from)) pump();
    if (!inbox.has_notice()) return {};
    office_.note_found();
    return inbox.next();
  }

  void release(int from, std::uint64_t position) override {
    std::lock_guard lock(mutex_);
    office_.inbox(from).release(position);
  }

  void send(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    std::lock_guard lock(mutex_);
    office_.send(to, operation, part, data);
    note_backlog();
  }

  void lend(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    std::lock_guard lock(mutex_);
    office_.lend(to, operation, part, data);
    note_backlog();
  }

  void expect(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> to) override {
    std::lock_guard lock(mutex_);
    office_.expect(from, operation, part, to);
  }

  bool receive(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) override {
    std::unique_lock lock(mutex_);
    Inbox& inbox = office_.inbox(from);
    if (!inbox.has_message(operation, part) && office_.is_asked_again(from)) pump();
    if (!inbox.has_message(operation, part)) return false;
    if (const Whereabouts* where = inbox.where_is(operation, part)) {
      const Whereabouts there = *where;
      if (there.total == data.size() && !fetch_unlocked(lock, from, there, data)) return false;
      office_.say_fetched(from, there.number);
      note_backlog();
    }
    inbox.take_message(operation, part, data);
    return true;
  }

  void close(std::uint64_t operation) override {
    std::lock_guard lock(mutex_);
    office_.close(operation);
    note_backlog();
  }

  void abandon(std::uint64_t operation) override {
    std::lock_guard lock(mutex_);
    office_.abandon(operation);
    note_backlog();
  }

  void refuse(std::uint64_t operation) override {
    std::lock_guard lock(mutex_);
    office_.refuse(operation);
    note_backlog();
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
    std::unique_lock lock(mutex_);
    await_fetches(lock);
    left_ = true;
    send_to_all(pack(Left{}, epoch()));
    switchboard_.note_leaving();
    sleepers_.wake_all();
  }

 private:
  std::uint32_t epoch() const { return options_.self.epoch; }

  // All below: REQUIRES mutex_.
  Peer& peer(int of) { return peers_[static_cast<std::size_t>(of)]; }

  void send_to_all(const std::vector<std::byte>& frame) {
    office_.send_to_all(frame);
    note_backlog();
  }

  // What no socket takes is sent by whoever waits, or else by the keeper, which must know. When all of it is gone, an
  // operation that has waited for just this can end.
  void note_backlog() {
    const bool backlog = switchboard_.has_unsent();
    if (backlog && !backlog_) keeper_bell_.strike();
    if (!backlog && backlog_) sleepers_.wake_all();
    backlog_ = backlog;
  }

  // Takes the data that has arrived and sends what could not be sent before.
  void pump() {
    pumped_ = Clock::now();
    if (switchboard_.pump_data()) {
      arrivals_.fetch_add(1, std::memory_order_relaxed);
      return after_news();
    }
    if (backlog_) note_backlog();
  }

  void pump_control() {
    if (switchboard_.pump_control()) after_news();
    send_agreement();
  }

  void after_news() {
    send_answers();
    send_agreement();
    note_backlog();
    sleepers_.wake_all();
  }

  void take(int from, Said& said) {
    Peer& one = peer(from);
    if (auto* announcement = std::get_if<Announcement>(&said)) {
      office_.inbox(from).add(*announcement);
    } else if (auto* piece = std::get_if<Piece>(&said)) {
      office_.inbox(from).add(*piece);
    } else if (auto* declaration = std::get_if<Declaration>(&said)) {
      one.declaration = std::move(*declaration);
    } else if (auto* message = std::get_if<Message>(&said)) {
      agreement_.deliver(from, *message);
    } else if (auto* hello = std::get_if<Hello>(&said)) {
      one.hello = *hello;
      if (survey_.spans_hosts() && host_of(from) == host_of(rank_)) try_reach(from);
    } else if (auto* where = std::get_if<Whereabouts>(&said)) {
      if (!one.is_in_reach) throw net::BadFrame("a message to be read where this rank cannot");
      if (!office_.inbox(from).add(*where))
        answers_.emplace_back(from, pack(Fetched{.number = where->number}, epoch()));
    } else if (auto* fetched = std::get_if<Fetched>(&said)) {
      office_.note_fetched(from, fetched->number);
    } else if (std::holds_alternative<InReach>(said)) {
      office_.note_in_reach(from);
    } else if (auto* measured = std::get_if<Measured>(&said)) {
      survey_.hear(from, measured->network);
    } else if (std::holds_alternative<Left>(said)) {
      switchboard_.note_left(from);
    }
  }

  // Ranks of one host read what they are sent in each other's memory. Where all share a host they need not: there the
  // program has asked for TCP.
  void try_reach(int peer_rank) {
    Peer& one = peer(peer_rank);
    one.is_in_reach = is_in_reach(one.hello);
    if (one.is_in_reach) {
      answers_.emplace_back(peer_rank, pack(InReach{}, epoch()));
    } else {
      log::info(rank_, fmt::format("the memory of rank {} on this host may not be read (ptrace_scope, or containers): "
                                   "what it sends comes through TCP",
                                   peer_rank));
    }
  }

  // What neighbours have yet to read goes with this rank.
  void await_fetches(std::unique_lock<std::mutex>& lock) {
    const auto deadline = Clock::now() + kFarewell;
    const auto has_ended = [&] { return agreement_.words().verdict || own_verdict_; };  // then nobody needs it
    while (office_.has_to_be_fetched() && !has_ended() && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(milliseconds(1));
      lock.lock();
      pump();
    }
  }

  // The engine's lock keeps the message and its place from being touched meanwhile.
  bool fetch_unlocked(std::unique_lock<std::mutex>& lock, int from, const Whereabouts& there, std::span<std::byte> to) {
    const Hello sender = peer(from).hello;
    lock.unlock();
    const bool has_come = fetch(sender, there, to);
    lock.lock();
    if (!has_come && switchboard_.health(from) == Health::left)
      throw Error(ErrorCode::peer_lost, fmt::format("rank {} has left before this rank had all of its part", from));
    return has_come;
  }

  void lose(int peer_rank) {
    agreement_.lose(peer_rank);
    office_.note_lost(peer_rank);
  }

  // What was to be said while frames were taken.
  void send_answers() {
    for (const auto& [to, frame] : std::exchange(answers_, {})) switchboard_.send_data(to, frame);
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
    leave_out_of_census(this_thread());
    std::unique_lock lock(mutex_, std::defer_lock);
    try {
      lock.lock();
      keep_until_the_end(lock);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      give_up(lock, error.what());
    }
    lock.unlock();
    return_to_census(this_thread());
  }

  // Without its keeper a rank cannot go on; whoever hears of it knows why, the others will find this one silent.
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& why) {
    own_verdict_ = Verdict{.code = ErrorCode::system,
                           .rank = rank_,
                           .text = fmt::format("rank {} cannot look after its connections any more: {}", rank_, why)};
    sleepers_.wake_all();
    try {
      settle(lock, *own_verdict_);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      log::warn(rank_, fmt::format("{}. The other ranks could not be told: {}", own_verdict_->text, error.what()));
    }
    sleepers_.wake_all();
  }

  void keep_until_the_end(std::unique_lock<std::mutex>& lock) {
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
      renew_connections(lock);
      if (now - pumped_ >= kKeeperRound) pump();  // a connection that nobody uses may be lost too
      switchboard_.notice_silence(now);
      switchboard_.notice_broken(now);
      if (const auto news = survey_.look(switchboard_, now)) send_to_all(pack(Measured{.network = *news}, epoch()));
      send_agreement();
      wait_for_news(lock);
    }
  }

  void renew_connections(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    if (options_.in_keeper) options_.in_keeper();
    std::vector<Mesh::Renewed> all = mesh_->renewed();
    lock.lock();
    for (Mesh::Renewed& one : all) {
      if (one.streams.control) switchboard_.renew(one.peer, std::move(one.streams));
      if (one.is_gone) switchboard_.note_gone(one.peer);
      after_news();
    }
  }

  void wait_for_news(std::unique_lock<std::mutex>& lock) {
    // Somebody who has just looked will look again, and is better not disturbed.
    const auto now = Clock::now();
    const bool has_data = backlog_ || survey_.is_beginning(now);
    const bool moves_data = has_data && sleepers_.nobody() && now - pumped_ > kDataRound;
    const auto longest = std::min(has_data ? kDataRound : kKeeperRound, options_.heartbeat);
    pollfd waits[] = {{.fd = switchboard_.control_poll(), .events = POLLIN, .revents = 0},
                      {.fd = keeper_bell_.fd(), .events = POLLIN, .revents = 0},
                      {.fd = mesh_->fd(), .events = POLLIN, .revents = 0},
                      {.fd = switchboard_.data_poll(), .events = POLLIN, .revents = 0}};
    lock.unlock();
    ++rounds_;
    ::poll(waits, moves_data ? 4 : 3, static_cast<int>(longest.count()));
    keeper_bell_.silence();
    lock.lock();
    if (moves_data && (backlog_ || waits[3].revents != 0)) pump();
  }

  const TcpOptions options_;
  const int rank_;
  const pid_t process_ = ::getpid();
  const Bell keeper_bell_;
  const std::unique_ptr<Mesh> mesh_;       // the keeper's
  std::atomic<std::uint64_t> rounds_ = 0;  // of the keeper
  std::atomic<std::uint64_t> arrivals_ = 0;
  mutable std::mutex mutex_;
  // All below is protected by mutex_.
  std::vector<Peer> peers_;  // by rank; this rank's is empty
  PostOffice office_;
  std::vector<std::pair<int, std::vector<std::byte>>> answers_;  // and to whom
  Agreement agreement_;
  NetworkSurvey survey_;
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
                                            net::Clock::time_point deadline, std::vector<int> hosts) {
  if (!hosts.empty()) door.options_.hosts = std::move(hosts);
  auto streams = door.mesh_->connect(addresses, deadline);
  return std::make_unique<TcpTransport>(door.options_, std::move(door.mesh_), std::move(streams));
}

}  // namespace lockstep::transport
