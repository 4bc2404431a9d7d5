#include "simulated_world.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace lockstep::simulation {

using transport::Health;
using transport::Notice;
using transport::NoticeRef;
using transport::Place;
using transport::Verdict;

class SimulatedTransport final : public transport::Transport,
                                 private transport::SharedMemory,
                                 private transport::Messages {
 public:
  SimulatedTransport(SimulatedWorld& world, int rank) : world_(world), rank_(rank), mine_(world.at(rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_.ranks_.size()); }
  std::chrono::steady_clock::time_point now() const override { return world_.scheduler_.now(); }

  std::optional<std::uint64_t> post(const Notice& notice) override {
    step(Point::post);
    if (gone()) return std::nullopt;
    std::uint64_t released = mine_.posted;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank_) released = std::min(released, reader_of(peer, rank_).run);
    }
    if (mine_.posted >= released + world_.depth_) return std::nullopt;
    const std::uint64_t position = mine_.posted++;
    SimulatedWorld::Slot& slot = mine_.log[position % world_.depth_];
    slot.notice = notice;
    for (auto& word : slot.scratch) word.store(0);
    slot.stamp = position + 1;
    step(Point::post);
    ring_everybody();
    return position;
  }

  NoticeRef next(int peer) override {
    step(Point::next);
    SimulatedWorld::Reader& reader = reader_of(rank_, peer);
    const SimulatedWorld::Slot& slot = world_.at(peer).log[reader.cursor % world_.depth_];
    if (gone() || slot.stamp != reader.cursor + 1) return {};
    return {.head = &slot.notice.head, .detail = &slot.notice.detail, .position = reader.cursor++};
  }

  void release(int peer, std::uint64_t position) override {
    step(Point::release);
    if (gone()) return;
    SimulatedWorld::Reader& reader = reader_of(rank_, peer);
    reader.released[position % world_.depth_] = true;
    while (reader.released[reader.run % world_.depth_]) reader.released[reader.run++ % world_.depth_] = false;
    ring(peer);
  }

  transport::SharedMemory* shared() override { return world_.shared_memory_ ? this : nullptr; }
  transport::Messages* messages() override { return world_.shared_memory_ ? nullptr : this; }

  void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) override {
    step(Point::sleep);
    const std::uint32_t bell = mine_.bell;
    if (work_appeared() || bell != mine_.bell) return;
    world_.scheduler_.sleep(limit);
  }

  void ring(int rank) override {
    step(Point::ring);
    if (gone()) return;
    ++world_.at(rank).bell;
    world_.scheduler_.wake(world_.at(rank).process);
  }
  void ring_everybody() override {
    for (int rank = 0; rank < size(); ++rank) ring(rank);
  }

  Health health(int peer) override {
    step(Point::health);
    const SimulatedWorld::Rank& other = world_.at(peer);
    if (other.left) return Health::left;
    if (world_.scheduler_.is_dead(other.process)) return Health::dead;
    return world_.scheduler_.counts_as_stopped(other.process) ? Health::stopped : Health::alive;
  }

  long process_of(int peer) const override { return 1000 + world_.at(peer).process; }

  void pronounce(const Verdict& verdict) override {
    step(Point::pronounce);
    if (gone() || world_.first_to_speak_ >= 0) return;
    mine_.verdict = verdict;
    step(Point::pronounce);
    if (gone()) return;
    if (world_.first_to_speak_ < 0) world_.first_to_speak_ = rank_;
    step(Point::pronounce);
    ring_everybody();
  }

  std::optional<Verdict> verdict() const override { return world_.verdict(); }

  void declare(const transport::Standstill& standstill, std::span<const pid_t>) override {
    step(Point::declare);
    if (gone()) return;
    mine_.standstill.waits = standstill.waits;
    step(Point::declare);
    if (gone()) return;
    mine_.standstill = standstill;
  }
  transport::Standstill standstill(int rank) override {
    step(Point::declare);
    return world_.at(rank).standstill;
  }
  std::string doing(int rank) override { return world_.at(rank).standstill.doing; }
  std::vector<pid_t> threads_here(int) override { return {}; }

  std::uint64_t seat(int rank) override {
    step(Point::seat);
    return world_.at(rank).seat;
  }
  bool change_seat(int rank, std::uint64_t expected, std::uint64_t desired) override {
    step(Point::seat);
    if (gone() || world_.at(rank).seat != expected) return false;
    world_.at(rank).seat = desired;
    step(Point::seat);
    ring_everybody();
    return true;
  }

  void quiesce() override {
    for (int peer = 0; peer < size(); ++peer) {
      while (!gone() && peer != rank_ && world_.at(peer).accessing && health(peer) == Health::alive)
        world_.scheduler_.sleep(std::chrono::milliseconds(1));
    }
  }

  void arrive() override {}
  void leave() override {
    step(Point::leave);
    if (gone()) return;
    mine_.left = true;
    ring_everybody();
  }

 private:
  void step(Point point) { world_.scheduler_.step(point); }
  bool gone() const { return world_.scheduler_.is_unwinding(); }
  SimulatedWorld::Reader& reader_of(int reader, int writer) {
    return world_.at(reader).readers[static_cast<std::size_t>(writer)];
  }

  // --- messages

  void send(int peer, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) override {
    step(Point::message);
    if (gone()) return;
    world_.at(peer).messages.emplace(SimulatedWorld::MessageKey{rank_, operation, part},
                                     std::vector<std::byte>(data.begin(), data.end()));
    ring(peer);
  }

  bool receive(int peer, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) override {
    step(Point::message);
    const auto found = mine_.messages.find({peer, operation, part});
    if (gone() || found == mine_.messages.end()) return false;
    if (found->second.size() != data.size()) throw Error(ErrorCode::internal, "a message of another size");
    std::copy(found->second.begin(), found->second.end(), data.begin());
    mine_.messages.erase(found);
    return true;
  }

  // --- shared memory: a place is an address

  std::byte* at(int, Place place) override { return reinterpret_cast<std::byte*>(place); }
  Place place_of(const void* address, std::size_t) override { return reinterpret_cast<Place>(address); }
  void learn_reach() override {}
  Place private_place(const void*, std::chrono::milliseconds) override { return transport::kNowhere; }
  bool read(int, Place, std::size_t, std::span<std::byte>) override { return false; }
  bool write(int, Place, std::size_t, std::span<const std::byte>) override { return false; }
  void* allocate(std::size_t bytes) override { return std::malloc(bytes); }
  void deallocate(void* block) override { std::free(block); }

  std::atomic<std::uint32_t>* scratch(int owner, std::uint64_t position) override {
    return world_.at(owner).log[position % world_.depth_].scratch;
  }

  transport::Board& board(int owner) override {
    step(Point::post);
    return *world_.at(owner).board;
  }

  bool begin_access() override {
    if (gone()) return false;
    mine_.accessing = true;
    // Stopped here it would go on, much later, to write into memory that is not there any more.
    world_.scheduler_.forbid_stops(true);
    if (world_.first_to_speak_ < 0) {
      step(Point::access);
      return true;
    }
    end_access();
    return false;
  }
  void end_access() override {
    mine_.accessing = false;
    if (!gone()) world_.scheduler_.forbid_stops(false);
  }

  SimulatedWorld& world_;
  int rank_;
  SimulatedWorld::Rank& mine_;
};

SimulatedWorld::SimulatedWorld(Scheduler& scheduler, std::vector<int> processes, bool shared_memory,
                               std::uint64_t log_depth)
    : scheduler_(scheduler), shared_memory_(shared_memory), depth_(log_depth), ranks_(processes.size()) {
  for (std::size_t i = 0; i < processes.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.process = processes[i];
    rank.log = std::vector<Slot>(depth_);
    rank.readers.resize(processes.size());
    for (Reader& reader : rank.readers) reader.released.resize(depth_);
  }
}

std::unique_ptr<transport::Transport> SimulatedWorld::transport(int rank) {
  return std::make_unique<SimulatedTransport>(*this, rank);
}

const std::optional<Verdict>& SimulatedWorld::verdict() const {
  static const std::optional<Verdict> none;
  return first_to_speak_ < 0 ? none : ranks_[static_cast<std::size_t>(first_to_speak_)].verdict;
}

}  // namespace lockstep::simulation
