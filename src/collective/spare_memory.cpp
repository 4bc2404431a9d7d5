#include "collective/spare_memory.hpp"

#include <map>
#include <mutex>

namespace lockstep::collective {
namespace {

constexpr std::size_t kMostSpareBytes = 16 << 20;

struct Spares {
  std::mutex mutex;
  std::multimap<std::size_t, std::unique_ptr<std::byte[]>> blocks;  // by size
  std::size_t bytes = 0;
};

// Never destroyed: engines may end later than static objects.
Spares& spares() {
  static auto* const all = new Spares;
  return *all;
}

}  // namespace

SpareMemory::SpareMemory(std::size_t bytes) : bytes_(bytes) {
  Spares& all = spares();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.blocks.find(bytes); found != all.blocks.end()) {
      block_ = std::move(found->second);
      all.blocks.erase(found);
      all.bytes -= bytes;
      return;
    }
  }
  block_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
}

SpareMemory::~SpareMemory() {
  Spares& all = spares();
  const std::lock_guard lock(all.mutex);
  if (all.bytes + bytes_ > kMostSpareBytes) return;
  all.blocks.emplace(bytes_, std::move(block_));
  all.bytes += bytes_;
}

}  // namespace lockstep::collective
