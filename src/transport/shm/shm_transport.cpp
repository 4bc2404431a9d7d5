#include "transport/shm/shm_transport.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/fd.hpp"
#include "base/futex.hpp"
#include "base/log.hpp"
#include "base/process_memory.hpp"
#include "heap/arena.hpp"
#include "transport/shm/control_block.hpp"
#include "transport/shm/stop_detector.hpp"

namespace lockstep::transport {
namespace {

using shm::ControlBlock;
using shm::StopDetector;

constexpr std::uint64_t kProbeWord = 0x6b63'6f6c'7473'7065ULL;

template <std::size_t Size>
void copy_text(const std::string& text, char (&to)[Size]) {
  const std::size_t length = std::min(text.size(), Size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

class ShmTransport final : public Transport, private SharedMemory {
 public:
  ShmTransport(std::shared_ptr<heap::Segment> segment, int rank)
      : segment_(std::move(segment)),
        rank_(rank),
        size_(static_cast<int>(segment_->shape().ranks)),
        mine_(segment_->control(rank), size_),
        arena_(segment_->arena(rank), segment_->shape().arena_bytes,
               [this](std::byte* first, std::size_t bytes) { return segment_->commit(first, bytes); }),
        stops_(size_),
        readers_(static_cast<std::size_t>(size_)) {
    for (auto& reader : readers_) reader.released.resize(mine_.depth());
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  SharedMemory* shared() override { return this; }

  // --- notices

  std::optional<std::uint64_t> post(const Notice& notice) override {
    learn_reach();  // before it is needed
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
    learn_reach();  // every rank looks for notices soon, whatever it does
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

  // Each rank writes into its own record, and one word says whose counts. So a rank that dies or is stopped over its
  // words keeps nobody waiting, and on waking cannot change what was said.
  void pronounce(const Verdict& verdict) override {
    if (first_to_speak().load(std::memory_order_seq_cst) != 0) return;
    shm::VerdictRecord& record = mine_.head().verdict;
    record.code = static_cast<std::int32_t>(verdict.code);
    record.rank = verdict.rank;
    copy_text(verdict.text, record.text);
    std::uint32_t nobody = 0;
    first_to_speak().compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_ + 1), std::memory_order_seq_cst);
    ring_everybody();
  }

  std::optional<Verdict> verdict() const override {
    const std::uint32_t first = first_to_speak().load(std::memory_order_seq_cst);
    if (first == 0) return std::nullopt;
    const shm::VerdictRecord& record = block(static_cast<int>(first) - 1).head().verdict;
    return Verdict{.code = static_cast<ErrorCode>(record.code), .rank = record.rank, .text = record.text};
  }

  void declare(const Standstill& standstill, std::span<const pid_t> threads) override {
    shm::StandstillRecord& record = mine_.head().standstill;
    for (std::size_t i = 0; i < record.kThreads; ++i) record.threads[i].store(i < threads.size() ? threads[i] : 0);
    if (standstill.version != 0 && standstill.version != record.version.load()) {
      record.version.store(0);
      copy_text(standstill.doing, record.doing);
    }
    record.waits.store(standstill.waits ? 1 : 0);
    record.version.store(standstill.version);
    record.confirmed.store(standstill.confirmed);
  }

  Standstill standstill(int rank) override {
    const shm::StandstillRecord& record = block(rank).head().standstill;
    return {.waits = record.waits.load() != 0, .version = record.version.load(), .confirmed = record.confirmed.load()};
  }

  std::string doing(int rank) override { return block(rank).head().standstill.doing; }

  std::vector<pid_t> threads_here(int rank) override {
    std::vector<pid_t> threads;
    if (!is_here(rank)) return threads;
    for (const auto& thread : block(rank).head().standstill.threads) {
      if (const pid_t number = thread.load()) threads.push_back(number);
    }
    return threads;
  }

  std::uint64_t seat(int rank) override { return block(rank).head().seat.load(std::memory_order_seq_cst); }

  bool change_seat(int rank, std::uint64_t expected, std::uint64_t desired) override {
    if (!block(rank).head().seat.compare_exchange_strong(expected, desired, std::memory_order_seq_cst)) return false;
    ring_everybody();
    return true;
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

  void arrive() override {
    segment_->liveness(rank_).hold(getpid());
    mine_.head().probe.store(reinterpret_cast<std::uint64_t>(&probe_word_), std::memory_order_release);
  }
  void leave() override {
    segment_->liveness(rank_).leave();
    ring_everybody();
  }

 private:
  // --- shared memory

  std::byte* at(int owner, Place place) override {
    if ((place & kPrivate) == 0) return segment_->arena(owner) + place;
    return is_here(owner) ? reinterpret_cast<std::byte*>(place & ~kPrivate) : nullptr;
  }

  void learn_reach() override {
    if (!pulling_) pulling_ = everybody_reads_everybody();
  }

  Place private_place(const void* address, std::chrono::milliseconds patience) override {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (learn_reach(); !pulling_ && std::chrono::steady_clock::now() < end; learn_reach()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!pulling_.value_or(false)) return kNowhere;  // some have not tried yet, or cannot
    return reinterpret_cast<Place>(address) | kPrivate;
  }

  bool read(int owner, Place place, std::size_t offset, std::span<std::byte> to) override {
    return has_moved(read_process(segment_->liveness(owner).pid(), (place & ~kPrivate) + offset, to), owner);
  }
  bool write(int owner, Place place, std::size_t offset, std::span<const std::byte> from) override {
    return has_moved(write_process(segment_->liveness(owner).pid(), (place & ~kPrivate) + offset, from), owner);
  }

  Place place_of(const void* address, std::size_t bytes) override {
    if (!arena_.contains(address, bytes)) return kNowhere;
    return static_cast<Place>(static_cast<const std::byte*>(address) - arena_.base());
  }

  void* allocate(std::size_t bytes) override { return arena_.allocate(bytes); }
  void deallocate(void* block) override { arena_.deallocate(block); }

  void* reserve(std::size_t bytes) override { return arena_.reserve(bytes); }
  bool commit(void* first, std::size_t bytes) override {
    return arena_.commit_part(static_cast<std::byte*>(first), bytes);
  }
  std::size_t arena_bytes() override { return arena_.bytes(); }
  std::shared_ptr<const void> mapping() override { return segment_; }

  std::atomic<std::uint32_t>* scratch(int owner, std::uint64_t position) override {
    return block(owner).scratch(position).words;
  }

  Board& board(int owner) override { return block(owner).board(); }

  bool begin_access() override {
    mine_.head().accessing.store(1, std::memory_order_seq_cst);
    if (first_to_speak().load(std::memory_order_seq_cst) == 0) return true;
    end_access();
    return false;
  }
  void end_access() override { mine_.head().accessing.store(0, std::memory_order_release); }

  // --- private memory of other processes

  // Ranks that are threads of one process share all memory.
  bool is_here(int peer) const { return segment_->liveness(peer).pid() == getpid(); }

  /// False when the owner is gone.
  bool has_moved(Reach reach, int owner) const {
    if (reach == Reach::done) return true;
    if (reach == Reach::gone || segment_->liveness(owner).probe() != heap::Life::alive) return false;
    throw_errno("reach the memory of rank " + std::to_string(owner));
  }

  // nullopt while some have not tried yet. Whether a process may read another depends on limits that differ from host
  // to host (ptrace_scope, containers), so it is tried out, by every rank on every peer, and used only if all
  // succeeded.
  std::optional<bool> everybody_reads_everybody() {
    auto& mine = mine_.head();
    if (mine.reads_all.load(std::memory_order_relaxed) == 0) {
      const auto tried = reads_every_peer();
      if (!tried) return std::nullopt;
      mine.reads_all.store(*tried ? 1 : 2, std::memory_order_release);
    }
    for (int peer = 0; peer < size_; ++peer) {
      const std::uint32_t verdict = block(peer).head().reads_all.load(std::memory_order_acquire);
      if (verdict == 0) return std::nullopt;
      if (verdict == 2) {
        log::info(rank_, "rank " + std::to_string(peer) +
                             " may not read its peers' memory; tensors outside the heap are copied through it");
        return false;
      }
    }
    return true;
  }

  std::optional<bool> reads_every_peer() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || is_here(peer)) continue;
      const std::uint64_t address = block(peer).head().probe.load(std::memory_order_acquire);
      if (address == 0) return std::nullopt;
      std::uint64_t word = 0;
      const auto bytes = std::as_writable_bytes(std::span(&word, 1));
      if (read_process(segment_->liveness(peer).pid(), address, bytes) != Reach::done) return false;
      if (word != kProbeWord) return false;
    }
    return true;
  }

  std::atomic<std::uint32_t>& first_to_speak() const { return block(0).head().first_to_speak; }
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
  std::uint64_t probe_word_ = kProbeWord;
  std::optional<bool> pulling_;
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
