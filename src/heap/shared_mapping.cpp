#include "heap/shared_mapping.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "heap/arena.hpp"

namespace lockstep::heap {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;  // of x86, and of arm with pages of 4 KB; elsewhere no gain
constexpr int kCollapse = 25;                             // MADV_COLLAPSE, since Linux 6.1
constexpr std::size_t kAtOnce = 16 * kLargePage;
constexpr std::chrono::steady_clock::duration kMostSpent = std::chrono::milliseconds(500);  // on one mapping

std::size_t whole_pages(std::size_t bytes) { return bytes / kLargePage * kLargePage; }

}  // namespace

std::byte* map_part(int file, std::size_t offset, std::size_t bytes, int protection, const std::string& what) {
  const std::size_t room = bytes + kLargePage;
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw_errno(what);
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::size_t misplaced = (reinterpret_cast<std::uintptr_t>(begin) - offset) % kLargePage;
  std::byte* const base = begin + (misplaced == 0 ? 0 : kLargePage - misplaced);
  if (::mmap(base, bytes, protection, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, room);
    errno = error;
    throw_errno(what);
  }
  std::byte* const end = base + (bytes + kPage - 1) / kPage * kPage;
  if (base > begin) ::munmap(begin, static_cast<std::size_t>(base - begin));
  if (begin + room > end) ::munmap(end, static_cast<std::size_t>(begin + room - end));
  return base;
}

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
  base_ = map_part(file_.get(), 0, bytes, PROT_READ | PROT_WRITE,
                   fmt::format("map {} MB of shared memory. Likely cause: a limit on address space (ulimit -v). Next "
                               "step: raise it, or set LOCKSTEP_HEAP_BYTES to less per rank",
                               bytes >> 20));
  mappings.all.insert(this);
}

SharedMapping::~SharedMapping() {
  Mappings& mappings = Mappings::get();
  const std::lock_guard lock(mappings.mutex);
  mappings.all.erase(this);
  ::munmap(base_, bytes_);
}

bool SharedMapping::take(const std::byte* first, std::size_t bytes) const {
  if (!take_memory(file_.get(), static_cast<std::size_t>(first - base_), bytes)) return false;
  use_large_pages(first, bytes);
  return true;
}

// Whoever walks through tensors comes to a new page all the time, and to find it costs more the smaller pages are. To
// make large ones costs once, 0.3 ms for each MB, or several times that where the kernel has to move others' memory
// first; so there is a limit to what is spent on it. The borders of a part are rounded to whole large pages, which
// takes up to two of them more than was asked for, once for parts that lie side by side.
void SharedMapping::use_large_pages(const std::byte* first, std::size_t bytes) const {
  if (bytes < kLargePage) return;
  const auto offset = static_cast<std::size_t>(first - base_);
  const std::size_t end = std::min(whole_pages(offset + bytes + kLargePage - 1), whole_pages(bytes_));
  for (std::size_t at = whole_pages(offset); at < end && spent_.load() < kMostSpent; at += kAtOnce) {
    const auto began = std::chrono::steady_clock::now();
    if (::madvise(base_ + at, std::min(kAtOnce, end - at), kCollapse) != 0 && errno == EINVAL) {
      spent_ = kMostSpent;  // this kernel cannot
    }
    spent_ = spent_.load() + (std::chrono::steady_clock::now() - began);
  }
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
