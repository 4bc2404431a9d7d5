#include "base/private_fd.hpp"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>
#include <unordered_set>

namespace lockstep {
namespace {

// All that are open. A fork waits until nobody changes it, so a number in it never belongs to anything else.
struct Registry {
  std::mutex mutex;
  std::unordered_set<int> fds;
  Fd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};

  static Registry& get() {
    static auto* const registry = [] {
      auto* made = new Registry;  // never deleted: a process may fork while it ends
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); }, [] { get().replace_all(); });
      return made;
    }();
    return *registry;
  }

  void replace_all() {
    for (const int fd : fds) {
      if (!nothing || ::dup3(nothing.get(), fd, O_CLOEXEC) < 0) ::close(fd);
    }
    mutex.unlock();
  }
};

}  // namespace

PrivateFd::PrivateFd(Fd fd) {
  if (!fd) return;
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.fds.insert(fd.get());
  fd_ = fd.release();
}

PrivateFd& PrivateFd::operator=(PrivateFd&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void PrivateFd::close() noexcept {
  if (fd_ < 0) return;
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.fds.erase(fd_);
  ::close(std::exchange(fd_, -1));
}

}  // namespace lockstep
