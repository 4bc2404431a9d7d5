#include "transport/memory/memory_transport.hpp"

#include <fmt/core.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace lockstep::transport {
namespace {

using MessageKey = std::tuple<int, std::uint64_t, std::uint32_t>;  // sender, operation, part

}  // namespace

class MemoryWorld {
 public:
  explicit MemoryWorld(int ranks) : size(ranks), states(static_cast<std::size_t>(ranks)) {
    for (auto& state : states) state.unread.resize(static_cast<std::size_t>(ranks));
  }

  struct RankState {
    std::vector<std::deque<std::pair<std::uint64_t, std::shared_ptr<const Notice>>>> unread;  // by sender
    std::map<std::pair<int, std::uint64_t>, std::shared_ptr<const Notice>> held;              // read, not yet released
    std::map<MessageKey, std::vector<std::byte>> messages;
    std::uint64_t posted = 0;
    std::uint32_t bell = 0;
    Health health = Health::alive;
    std::uint64_t seat = 0;
    Standstill standstill;
    std::vector<pid_t> threads;
  };

  const int size;
  std::mutex mutex;
  std::condition_variable rung;
  // All below is protected by mutex.
  std::vector<RankState> states;
  std::optional<Verdict> verdict;

  RankState& state(int rank) { return states[static_cast<std::size_t>(rank)]; }
};

namespace {

class MemoryTransport final : public Transport, private Messages {
 public:
  MemoryTransport(std::shared_ptr<MemoryWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}

  // A rank that vanishes without `leave` has died, as far as its peers can tell.
  ~MemoryTransport() override {
    std::lock_guard lock(world_->mutex);
    auto& health = world_->state(rank_).health;
    if (health == Health::alive) health = Health::dead;
    ring_locked();
  }

  int rank() const override { return rank_; }
  int size() const override { return world_->size; }
  Messages* messages() override { return this; }

  std::optional<std::uint64_t> post(const Notice& notice) override {
    std::lock_guard lock(world_->mutex);
    auto shared = std::make_shared<const Notice>(notice);
    const std::uint64_t position = world_->state(rank_).posted++;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) world_->state(peer).unread[static_cast<std::size_t>(rank_)].emplace_back(position, shared);
    }
    ring_locked();
    return position;
  }

  NoticeRef next(int peer) override {
    std::lock_guard lock(world_->mutex);
    auto& mine = world_->state(rank_);
    auto& queue = mine.unread[static_cast<std::size_t>(peer)];
    if (queue.empty()) return {};
    auto [position, notice] = std::move(queue.front());
    queue.pop_front();
    mine.held.emplace(std::pair(peer, position), notice);
    return {.head = &notice->head, .detail = &notice->detail, .position = position};
  }

  void release(int peer, std::uint64_t position) override {
    std::lock_guard lock(world_->mutex);
    world_->state(rank_).held.erase({peer, position});
  }

  void send(int peer, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    std::lock_guard lock(world_->mutex);
    world_->state(peer).messages.emplace(MessageKey{rank_, operation, part}, std::vector(data.begin(), data.end()));
    ring_locked();
  }

  bool receive(int peer, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) override {
    std::lock_guard lock(world_->mutex);
    auto& messages = world_->state(rank_).messages;
    auto found = messages.find({peer, operation, part});
    if (found == messages.end()) return false;
    if (found->second.size() != data.size()) {
      throw Error(ErrorCode::internal,
                  fmt::format("rank {} sent {} bytes where {} were expected", peer, found->second.size(), data.size()));
    }
    if (!data.empty()) std::memcpy(data.data(), found->second.data(), data.size());
    messages.erase(found);
    return true;
  }

  void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) override {
    std::unique_lock lock(world_->mutex);
    const std::uint32_t bell = world_->state(rank_).bell;
    lock.unlock();
    if (work_appeared()) return;
    lock.lock();
    // A deadline of the system clock, because the thread sanitizer of gcc 12 does not know the call behind the steady
    // one.
    world_->rung.wait_until(
        lock, std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(limit),
        [&] { return world_->state(rank_).bell != bell; });
  }

  void ring(int) override { ring_everybody(); }
  void ring_everybody() override {
    std::lock_guard lock(world_->mutex);
    ring_locked();
  }

  Health health(int peer) override {
    std::lock_guard lock(world_->mutex);
    return world_->state(peer).health;
  }

  long process_of(int) const override { return 0; }

  void pronounce(const Verdict& verdict) override {
    std::lock_guard lock(world_->mutex);
    if (!world_->verdict) world_->verdict = verdict;
    ring_locked();
  }

  std::optional<Verdict> verdict() const override {
    std::lock_guard lock(world_->mutex);
    return world_->verdict;
  }

  void declare(const Standstill& standstill, std::span<const pid_t> threads) override {
    std::lock_guard lock(world_->mutex);
    world_->state(rank_).standstill = standstill;
    world_->state(rank_).threads.assign(threads.begin(), threads.end());
  }

  Standstill standstill(int rank) override {
    std::lock_guard lock(world_->mutex);
    return world_->state(rank).standstill;
  }

  std::string doing(int rank) override { return standstill(rank).doing; }

  std::vector<pid_t> threads_here(int rank) override {
    std::lock_guard lock(world_->mutex);
    return world_->state(rank).threads;
  }

  std::uint64_t seat(int rank) override {
    std::lock_guard lock(world_->mutex);
    return world_->state(rank).seat;
  }

  bool change_seat(int rank, std::uint64_t expected, std::uint64_t desired) override {
    std::lock_guard lock(world_->mutex);
    if (world_->state(rank).seat != expected) return false;
    world_->state(rank).seat = desired;
    ring_locked();
    return true;
  }

  void quiesce() override {}  // nobody but this rank ever touches its memory

  void arrive() override {}
  void leave() override {
    std::lock_guard lock(world_->mutex);
    world_->state(rank_).health = Health::left;
    ring_locked();
  }

 private:
  void ring_locked() {
    for (auto& state : world_->states) ++state.bell;
    world_->rung.notify_all();
  }

  std::shared_ptr<MemoryWorld> world_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_memory_world(int size) {
  auto world = std::make_shared<MemoryWorld>(size);
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<MemoryTransport>(world, rank));
  return ranks;
}

}  // namespace lockstep::transport
