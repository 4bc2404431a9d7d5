#include "heap/shared_mapping.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace lockstep::heap {

bool take_memory(int file, std::size_t offset, std::size_t bytes) {
  int failed = 0;
  do {
    failed = ::fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  return failed == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

// All that there are. A fork waits until nobody changes it.
struct Mappings {
  std::mutex mutex;
  std::unordered_set<SharedMapping*> all;

  static Mappings& get() {
    static auto* const mappings = [] {
      auto* made = new Mappings;  // never deleted: a process may fork while it ends
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); }, [] { get().make_all_private(); });
      return made;
    }();
    return *mappings;
  }

  void make_all_private() {
    for (SharedMapping* mapping : all) mapping->make_private();
    mutex.unlock();
  }
};

SharedMapping::SharedMapping(Fd file, std::size_t bytes) : file_(std::move(file)), bytes_(bytes) {
  Mappings& mappings = Mappings::get();
  const std::lock_guard lock(mappings.mutex);
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base == MAP_FAILED) {
    throw_errno(fmt::format(
        "map {} MB of shared memory. Likely cause: a limit on address space (ulimit -v). Next step: raise it, or "
        "set LOCKSTEP_HEAP_BYTES to less per rank",
        bytes >> 20));
  }
  base_ = static_cast<std::byte*>(base);
  mappings.all.insert(this);
}

SharedMapping::~SharedMapping() {
  Mappings& mappings = Mappings::get();
  const std::lock_guard lock(mappings.mutex);
  mappings.all.erase(this);
  ::munmap(base_, bytes_);
}

// Whatever the system refuses, the memory of others is out of reach afterwards.
void SharedMapping::make_private() noexcept {
  if (std::exchange(private_, true)) return;  // a child of a child has what the child has
  const auto replace = [&](int protection, int flags, int file) {
    return ::mmap(base_, bytes_, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | flags, file, 0) != MAP_FAILED;
  };
  if (replace(PROT_READ | PROT_WRITE, 0, file_.get())) return;
  // Where the kernel counts what could be written (overcommit_memory=2) it may only be read.
  if (replace(PROT_READ, 0, file_.get())) return;
  replace(PROT_NONE, MAP_ANONYMOUS, -1);
}

}  // namespace lockstep::heap
