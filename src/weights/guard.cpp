#include "weights/guard.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

namespace lockstep::weights {

class GuardList {
 public:
  explicit GuardList(std::vector<GuardedRange> given) : ranges(std::move(given)) {}
  const std::vector<GuardedRange> ranges;
};

namespace {

// A signal handler is the process's own, and may touch only what is always in a valid state: hence a global of atomics.
constexpr std::size_t kMostGuards = 64;
std::array<std::atomic<const GuardList*>, kMostGuards> guards;
struct sigaction previous_action;

void say_whose(const std::byte* address) {
  for (const auto& slot : guards) {
    const GuardList* list = slot.load(std::memory_order_acquire);
    if (list == nullptr) continue;
    for (const GuardedRange& range : list->ranges) {
      if (address < range.first || address >= range.first + range.bytes) continue;
      static_cast<void>(!::write(STDERR_FILENO, range.text.data(), range.text.size()));
      return;
    }
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (info->si_code == SEGV_ACCERR) say_whose(static_cast<const std::byte*>(info->si_addr));
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) return previous_action.sa_sigaction(signal, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(signal);
  }
  // On return the same instruction faults again, and the process dies of it as if nobody had looked. Sent by kill, the
  // signal does not come again by itself.
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0) ::raise(signal);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &previous_action);
  });
}

}  // namespace

Guard::Guard(std::vector<GuardedRange> ranges) : list_(std::make_unique<GuardList>(std::move(ranges))) {
  install_handler();
  for (slot_ = 0; slot_ < kMostGuards; ++slot_) {
    const GuardList* none = nullptr;
    if (guards[slot_].compare_exchange_strong(none, list_.get(), std::memory_order_acq_rel)) return;
  }
  // So many at once that this one does without: a fault is then as mute as any other.
}

Guard::~Guard() {
  if (slot_ < kMostGuards) guards[slot_].store(nullptr, std::memory_order_release);
}

}  // namespace lockstep::weights
