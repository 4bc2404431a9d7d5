// What each rank keeps in shared memory beside its arena: its bell, its notices, and how far it has read the others'.
//
// Every word has one writer, its owner, unless it says otherwise. Things that are polled sit on lines of their own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/notice.hpp"
#include "transport/offer.hpp"

namespace lockstep::transport::shm {

inline constexpr std::size_t kLine = 128;  // two cache lines: neighbours are fetched together

struct alignas(kLine) Slot {
  std::atomic<std::uint64_t> stamp;  // position + 1 once the rest is valid
  NoticeHead head;
};
static_assert(sizeof(Slot) == kLine);

/// Written by all ranks that take part in the operation.
struct alignas(kLine) Scratch {
  std::atomic<std::uint32_t> words[16];
};

/// What its owner had to say about the end of the world. It counts only if `first_to_speak` names the owner, and does
/// not change after that.
struct alignas(kLine) VerdictRecord {
  std::int32_t code;
  std::int32_t rank;
  char text[2040];
};

/// How its owner stands (transport::Standstill). The text is written before the version that it goes with.
struct alignas(kLine) StandstillRecord {
  static constexpr std::size_t kThreads = 16;

  std::atomic<std::uint32_t> waits;
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> confirmed;
  std::atomic<std::int32_t> threads[kThreads];  // 0: none
  char doing[256];
};

struct ControlHead {
  alignas(kLine) std::atomic<std::uint32_t> bell;  // anybody adds one; sleepers wait for the change
  std::atomic<std::uint32_t> sleepers;
  alignas(kLine) std::atomic<std::uint32_t> accessing;  // 1 while this rank touches its peers' memory
  alignas(kLine) std::atomic<std::uint64_t> probe;      // address of a word that peers try to read, 0 before
  std::atomic<std::uint32_t> reads_all;  // 1: this rank can read every peer's private memory; 2: it cannot
  alignas(kLine) std::atomic<std::uint32_t> first_to_speak;  // in rank 0's block: rank + 1, set once by anybody
  VerdictRecord verdict;
  StandstillRecord standstill;
  alignas(kLine) std::atomic<std::uint64_t> seat;  // anybody changes it, by compare-and-swap
};

/// Notices that a rank can have under way. A tiny world gets a deep log, a large one a shallower, so that the control
/// blocks of a host stay below 100 MB.
inline std::uint64_t log_depth(int ranks) {
  return std::clamp<std::uint64_t>(std::uint64_t{65536} / static_cast<std::uint64_t>(ranks), 512, 4096);
}

/// The layout of one rank's block, given how many ranks there are.
class ControlBlock {
 public:
  ControlBlock(std::byte* base, int ranks) : base_(base), ranks_(ranks), depth_(log_depth(ranks)) {}

  static std::size_t bytes(int ranks) { return ControlBlock(nullptr, ranks).board_offset() + sizeof(Board); }

  ControlHead& head() const { return *at<ControlHead>(0); }
  /// How many of `peer`'s notices the owner has released.
  std::atomic<std::uint64_t>& released(int peer) const {
    return *at<std::atomic<std::uint64_t>>(sizeof(ControlHead) +
                                           static_cast<std::size_t>(peer) * sizeof(std::uint64_t));
  }
  Slot& slot(std::uint64_t position) const { return at<Slot>(slots_offset())[position % depth_]; }
  Scratch& scratch(std::uint64_t position) const { return at<Scratch>(scratch_offset())[position % depth_]; }
  NoticeDetail& detail(std::uint64_t position) const { return at<NoticeDetail>(details_offset())[position % depth_]; }
  Board& board() const { return *at<Board>(board_offset()); }
  std::uint64_t depth() const { return depth_; }

 private:
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  std::size_t slots_offset() const {
    const std::size_t end = sizeof(ControlHead) + static_cast<std::size_t>(ranks_) * sizeof(std::uint64_t);
    return (end + kLine - 1) / kLine * kLine;
  }
  std::size_t scratch_offset() const { return slots_offset() + depth_ * sizeof(Slot); }
  std::size_t details_offset() const { return scratch_offset() + depth_ * sizeof(Scratch); }
  std::size_t board_offset() const {
    return (details_offset() + depth_ * sizeof(NoticeDetail) + kLine - 1) / kLine * kLine;
  }

  std::byte* base_;
  int ranks_;
  std::uint64_t depth_;
};

}  // namespace lockstep::transport::shm
