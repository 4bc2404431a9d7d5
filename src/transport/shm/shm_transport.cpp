#include "transport/shm/shm_transport.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/cpu.hpp"
#include "base/futex.hpp"
#include "heap/arena.hpp"
#include "transport/shm/control_block.hpp"
#include "transport/shm/stop_detector.hpp"

namespace lockstep::transport {
namespace {

using shm::ControlBlock;
using shm::StopDetector;

class ShmTransport final : public Transport, private SharedMemory {
 public:
  ShmTransport(std::shared_ptr<heap::Segment> segment, int rank)
      : segment_(std::move(segment)),
        rank_(rank),
        size_(static_cast<int>(segment_->shape().ranks)),
        mine_(segment_->control(rank), size_),
        arena_(segment_->arena(rank), segment_->shape().arena_bytes),
        stops_(size_),
        readers_(static_cast<std::size_t>(size_)) {
    for (auto& reader : readers_) reader.released.resize(mine_.depth());
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  SharedMemory* shared() override { return this; }

  // --- notices

  std::optional<std::uint64_t> post(const Notice& notice) override {
    const std::uint64_t position = posted_;
    if (position >= free_until_ && !find_room()) return std::nullopt;
    shm::Slot& slot = mine_.slot(position);
    for (auto& word : mine_.scratch(position).words) word.store(0, std::memory_order_relaxed);
    mine_.detail(position) = notice.detail;
    slot.head = notice.head;
    // Sequentially consistent, so that either the peer sees the stamp before it sleeps or `ring` sees that it sleeps.
    slot.stamp.store(position + 1, std::memory_order_seq_cst);
    ++posted_;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) ring(peer);
    }
    return position;
  }

  NoticeRef next(int peer) override {
    Reader& reader = readers_[static_cast<std::size_t>(peer)];
    const std::uint64_t position = reader.cursor;
    ControlBlock theirs = block(peer);
    shm::Slot& slot = theirs.slot(position);
    if (slot.stamp.load(std::memory_order_acquire) != position + 1) return {};
    ++reader.cursor;
    return {.head = &slot.head, .detail = &theirs.detail(position), .position = position};
  }

  // Operations end in any order; what counts for the owner is the unbroken run of released notices from the start. It
  // is told once per eighth of the log, because it needs to know only before it comes round.
  void release(int peer, std::uint64_t position) override {
    Reader& reader = readers_[static_cast<std::size_t>(peer)];
    const std::uint64_t depth = mine_.depth();
    reader.released[position % depth] = true;
    while (reader.released[reader.run % depth]) {
      reader.released[reader.run % depth] = false;
      ++reader.run;
    }
    if (reader.run - reader.told >= depth / 8) {
      reader.told = reader.run;
      mine_.released(peer).store(reader.run, std::memory_order_seq_cst);
      ring(peer);
    }
  }

  // --- sleeping

  void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) override {
    auto& head = mine_.head();
    head.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t bell = head.bell.load(std::memory_order_seq_cst);
    if (!work_appeared()) futex_wait(head.bell, bell, limit);
    head.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  void ring(int rank) override {
    auto& head = block(rank).head();
    if (head.sleepers.load(std::memory_order_seq_cst) == 0) return;
    head.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(head.bell);
  }

  void ring_everybody() override {
    for (int rank = 0; rank < size_; ++rank) ring(rank);
  }

  // --- health

  Health health(int peer) override {
    heap::LivenessWord& word = segment_->liveness(peer);
    switch (word.probe()) {
      case heap::Life::dead:
        return Health::dead;
      case heap::Life::left:
        return Health::left;
      case heap::Life::absent:
        return Health::alive;  // still starting; the meeting watches over that
      case heap::Life::alive:
        break;
    }
    const pid_t pid = word.pid();
    return pid != getpid() && stops_.stopped(peer, pid) ? Health::stopped : Health::alive;
  }

  long process_of(int peer) const override { return segment_->liveness(peer).pid(); }

  void pronounce(const Verdict& verdict) override {
    shm::VerdictRecord& record = block(0).head().verdict;
    const std::uint32_t writing = static_cast<std::uint32_t>(rank_ + 1) * 2;
    std::uint32_t state = 0;
    while (!record.state.compare_exchange_strong(state, writing, std::memory_order_seq_cst)) {
      if (state == 1) return;  // somebody was first
      // Somebody is writing. If it died over that, its turn is taken over; otherwise it will be done in a moment.
      const int writer = static_cast<int>(state / 2) - 1;
      if (segment_->liveness(writer).probe() == heap::Life::alive) {
        state = 0;
        sched_yield();
      }
    }
    record.code = static_cast<std::int32_t>(verdict.code);
    record.rank = verdict.rank;
    const std::size_t length = std::min(verdict.text.size(), sizeof record.text - 1);
    std::memcpy(record.text, verdict.text.data(), length);
    record.text[length] = '\0';
    record.state.store(1, std::memory_order_seq_cst);
    ring_everybody();
  }

  std::optional<Verdict> verdict() const override {
    const shm::VerdictRecord& record = block(0).head().verdict;
    if (record.state.load(std::memory_order_seq_cst) != 1) return std::nullopt;
    return Verdict{.code = static_cast<ErrorCode>(record.code), .rank = record.rank, .text = record.text};
  }

  void quiesce() override {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto& accessing = block(peer).head().accessing;
      // A peer looks for the verdict before each access, and one access takes well under a millisecond. One that is
      // gone or stopped is not waited for.
      while (accessing.load(std::memory_order_seq_cst) != 0 && health(peer) == Health::alive) sched_yield();
    }
  }

  void arrive() override { segment_->liveness(rank_).hold(getpid()); }
  void leave() override {
    segment_->liveness(rank_).leave();
    ring_everybody();
  }

 private:
  // --- shared memory

  std::byte* at(int owner, Place place) override { return segment_->arena(owner) + place; }

  Place place_of(const void* address, std::size_t bytes) override {
    if (!arena_.contains(address, bytes)) return kNowhere;
    return static_cast<Place>(static_cast<const std::byte*>(address) - arena_.base());
  }

  void* allocate(std::size_t bytes) override { return arena_.allocate(bytes); }
  void deallocate(void* block) override { arena_.deallocate(block); }

  std::atomic<std::uint32_t>* scratch(int owner, std::uint64_t position) override {
    return block(owner).scratch(position).words;
  }

  bool begin_access() override {
    mine_.head().accessing.store(1, std::memory_order_seq_cst);
    if (block(0).head().verdict.state.load(std::memory_order_seq_cst) == 0) return true;
    end_access();
    return false;
  }
  void end_access() override { mine_.head().accessing.store(0, std::memory_order_seq_cst); }

  ControlBlock block(int rank) const { return {segment_->control(rank), size_}; }

  bool find_room() {
    std::uint64_t released = posted_;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) released = std::min(released, block(peer).released(rank_).load(std::memory_order_acquire));
    }
    free_until_ = released + mine_.depth();
    return posted_ < free_until_;
  }

  struct Reader {
    std::uint64_t cursor = 0;    // next notice to read
    std::uint64_t run = 0;       // all before it are released
    std::uint64_t told = 0;      // what the owner knows of that
    std::vector<bool> released;  // beyond the run, by slot
  };

  std::shared_ptr<heap::Segment> segment_;
  int rank_;
  int size_;
  ControlBlock mine_;
  heap::Arena arena_;
  StopDetector stops_;
  std::vector<Reader> readers_;
  std::uint64_t posted_ = 0;
  std::uint64_t free_until_ = 0;
};

}  // namespace

heap::SegmentShape shm_segment_shape(int ranks, std::size_t arena_bytes) {
  return {.ranks = static_cast<std::uint32_t>(ranks),
          .control_bytes = ControlBlock::bytes(ranks),
          .arena_bytes = arena_bytes};
}

std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<heap::Segment> segment, int rank) {
  return std::make_unique<ShmTransport>(std::move(segment), rank);
}

}  // namespace lockstep::transport
