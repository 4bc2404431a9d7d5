#include "engine/served.hpp"

#include <fmt/core.h>

#include <utility>

#include "base/log.hpp"
#include "heap/served_region.hpp"

namespace lockstep::engine {

ServedAllocations::ServedAllocations(const lockstep_preload_library* library, transport::SharedMemory* shared, int rank)
    : library_(library), shared_(shared), rank_(rank) {}

bool ServedAllocations::serve(const std::vector<std::size_t>& sizes, int (*meant)()) {
  const std::lock_guard lock(mutex_);
  const std::string hindrance = why_not(sizes, meant);
  if (hindrance.empty()) {
    say(fmt::format("gradients are born in shared memory ({} MB at most) and reduced there", (bytes_ >> 20) + 1));
  } else {
    say("gradients are copied to shared memory before they are reduced: " + hindrance);
  }
  return hindrance.empty();
}

// Empty: they are served. REQUIRES mutex_.
std::string ServedAllocations::why_not(const std::vector<std::size_t>& sizes, int (*meant)()) {
  if (shared_ == nullptr) return "the ranks share no memory";
  if (library_ == nullptr) {
    return "the library that makes them there is not preloaded. `lockstep run` does that, unless it is told not to";
  }
  // The rest is for tensors that are copied, and for the engine itself.
  const std::size_t most = shared_->arena_bytes() / 2;
  const auto classes = heap::classes_for(sizes, most > bytes_ ? most - bytes_ : 0);
  if (classes.empty()) return "they are too small to matter, or too large for the heap";
  const std::size_t bytes = library_->room(classes.data(), classes.size());
  void* base = shared_->reserve(bytes);
  if (base == nullptr) return "the heap is full";
  heap::Room room{.base = base,
                  .bytes = bytes,
                  .commit =
                      [shared = shared_, rank = rank_](std::byte* first, std::size_t part) {
                        if (shared->commit(first, part)) return true;
                        log::warn(rank,
                                  "a memory limit is near: gradients that are new from now on are not born in shared "
                                  "memory, but copied there. Raise the memory limit.");
                        return false;
                      },
                  .memory = shared_->mapping()};
  std::string problem;
  const int handle = heap::serve(*library_, classes, std::move(room), meant, problem);
  if (handle < 0) {
    shared_->deallocate(base);
    return problem;
  }
  regions_.push_back(handle);
  bytes_ += bytes;
  return {};
}

void ServedAllocations::retire() {
  const std::lock_guard lock(mutex_);
  for (const int region : regions_) library_->retire(region);
  regions_.clear();
}

void ServedAllocations::say(const std::string& sentence) {
  if (rank_ == 0 && said_.insert(sentence).second) log::info(rank_, sentence);
}

}  // namespace lockstep::engine
