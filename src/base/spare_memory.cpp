#include "base/spare_memory.hpp"

#include <pthread.h>

#include <deque>
#include <mutex>

namespace lockstep {
namespace {

constexpr std::size_t kMostSpareBytes = 16 << 20;
constexpr std::size_t kMostSpares = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLeast = 4 * kPage;  // what is smaller the allocator keeps by itself

struct Spare {
  std::unique_ptr<std::byte[]> block;
  std::size_t capacity = 0;
};

struct Spares {
  std::mutex mutex;
  std::deque<Spare> all;  // the last that was used comes last: it may still be in the cache
  std::size_t bytes = 0;
};

// Never destroyed: engines may end later than static objects. A forked child has a copy that nobody was using: there,
// too, blocks go back when the copy of an engine is destroyed.
Spares& spares() {
  static Spares* const all = [] {
    auto* const made = new Spares;
    pthread_atfork([] { spares().mutex.lock(); }, [] { spares().mutex.unlock(); }, [] { spares().mutex.unlock(); });
    return made;
  }();
  return *all;
}

}  // namespace

SpareMemory::SpareMemory(std::size_t bytes)
    : bytes_(bytes), capacity_(bytes < kLeast ? bytes : (bytes + kPage - 1) / kPage * kPage) {
  if (bytes >= kLeast) {
    Spares& spare = spares();
    const std::lock_guard lock(spare.mutex);
    for (auto one = spare.all.rbegin(); one != spare.all.rend(); ++one) {
      if (one->capacity < bytes || one->capacity > 2 * bytes) continue;
      block_ = std::move(one->block);
      capacity_ = one->capacity;
      spare.bytes -= capacity_;
      spare.all.erase(std::next(one).base());
      return;
    }
  }
  block_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
}

// Of sizes that nobody asks for any more, the ones that have lain there longest make room.
void SpareMemory::give_back() {
  if (capacity_ < kLeast || capacity_ > kMostSpareBytes) return;
  std::deque<Spare> dropped;  // freed without the lock
  Spares& spare = spares();
  const std::lock_guard lock(spare.mutex);
  spare.all.push_back({.block = std::move(block_), .capacity = capacity_});
  spare.bytes += capacity_;
  while (spare.bytes > kMostSpareBytes || spare.all.size() > kMostSpares) {
    spare.bytes -= spare.all.front().capacity;
    dropped.push_back(std::move(spare.all.front()));
    spare.all.pop_front();
  }
}

}  // namespace lockstep
