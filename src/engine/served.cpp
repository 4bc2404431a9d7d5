#include "engine/served.hpp"

#include <fmt/core.h>

#include <map>
#include <memory>

#include "base/log.hpp"

namespace lockstep::engine {
namespace {

// A smaller one is copied in less time than it takes to say where it lies.
constexpr std::size_t kLeastServed = 4096;

// Of each: one that is in use, and one that is computed meanwhile, where passes add up or a graph is kept.
constexpr int kBlocksOfEach = 2;

// What a region needs of the engine; it may outlive it. The library deletes it, when the last block is back.
struct Lease {
  transport::SharedMemory* shared;  // of use until the region is retired
  std::shared_ptr<const void> mapping;
  int rank;

  static int commit(void* lease, void* first, std::size_t bytes) {
    const auto& self = *static_cast<Lease*>(lease);
    if (self.shared->commit(first, bytes)) return 1;
    log::warn(self.rank,
              "a memory limit is near: gradients that are new from now on are not born in shared memory, but copied "
              "there. Raise the memory limit.");
    return 0;
  }
  static void release(void* lease) { delete static_cast<Lease*>(lease); }
};

// As many blocks as fit into `budget`: first one of each, then the next of each.
std::vector<lockstep_preload_class> classes_for(const std::vector<std::size_t>& sizes, std::size_t budget) {
  constexpr std::size_t kPage = 4096;
  std::map<std::size_t, std::size_t> counts;
  std::size_t used = 0;
  for (int round = 0; round < kBlocksOfEach; ++round) {
    for (const std::size_t bytes : sizes) {
      const std::size_t most = bytes + kPage;  // with what is lost to alignment
      if (bytes < kLeastServed || bytes > budget || used + most > budget) continue;
      used += most;
      ++counts[bytes];
    }
  }
  std::vector<lockstep_preload_class> classes;
  for (const auto& [bytes, count] : counts) classes.push_back({.bytes = bytes, .count = count});
  return classes;
}

}  // namespace

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
  const auto classes = classes_for(sizes, most > bytes_ ? most - bytes_ : 0);
  if (classes.empty()) return "they are too small to matter, or too large for the heap";
  const std::size_t bytes = library_->room(classes.data(), classes.size());
  void* base = shared_->reserve(bytes);
  if (base == nullptr) return "the heap is full";
  auto lease = std::make_unique<Lease>(Lease{shared_, shared_->mapping(), rank_});
  const lockstep_preload_region region{.base = base,
                                       .bytes = bytes,
                                       .classes = classes.data(),
                                       .class_count = classes.size(),
                                       .commit = &Lease::commit,
                                       .meant = meant,
                                       .release = &Lease::release,
                                       .context = lease.get()};
  const char* problem = nullptr;
  const int handle = library_->serve(&region, &problem);
  if (handle < 0) {
    shared_->deallocate(base);
    return problem;
  }
  static_cast<void>(lease.release());
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
