#include "fiber.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/sanitizer_test.hpp"

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers' own names
void __sanitizer_start_switch_fiber(void** shadow, const void* stack, std::size_t bytes) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* shadow, const void** stack, std::size_t* bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* address, std::size_t bytes) __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}

namespace lockstep::simulation {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;

// Stacks are used again: a schedule is over in less time than it takes to map one.
std::vector<std::byte*>& free_stacks() {
  static std::vector<std::byte*> stacks;
  return stacks;
}

std::byte* take_stack() {
  auto& stacks = free_stacks();
  if (!stacks.empty()) {
    std::byte* stack = stacks.back();
    stacks.pop_back();
    return stack;
  }
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) throw std::runtime_error("no memory for a stack");
  return static_cast<std::byte*>(stack);
}

// The address sanitizer must be told about each change of stack.
void leave_stack(void** shadow, const void* next, std::size_t bytes) {
  if (under_address_sanitizer()) __sanitizer_start_switch_fiber(shadow, next, bytes);
}
void enter_stack(void* shadow, const void** previous, std::size_t* bytes) {
  if (under_address_sanitizer()) __sanitizer_finish_switch_fiber(shadow, previous, bytes);
}
void clear_stack(std::byte* stack) {
  if (under_address_sanitizer()) __asan_unpoison_memory_region(stack, kStackBytes);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

Fiber::~Fiber() {
  clear_stack(stack_);
  free_stacks().push_back(stack_);
}

void Fiber::enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>((static_cast<std::uintptr_t>(high) << 32) | low)->run();
}

void Fiber::run() {
  enter_stack(nullptr, &outside_stack_, &outside_bytes_);
  body_();
  ended_ = true;
  leave_stack(nullptr, outside_stack_, outside_bytes_);
  setcontext(&outside_);
}

void Fiber::swap_exceptions() {
  auto* current = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
  std::swap(*current, exceptions_);
}

void Fiber::resume() {
  swap_exceptions();
  void* shadow = nullptr;
  leave_stack(&shadow, stack_, kStackBytes);
  swapcontext(&outside_, &inside_);
  enter_stack(shadow, nullptr, nullptr);
  swap_exceptions();
}

void Fiber::pause() {
  leave_stack(&shadow_, outside_stack_, outside_bytes_);
  swapcontext(&inside_, &outside_);
  enter_stack(shadow_, &outside_stack_, &outside_bytes_);
}

}  // namespace lockstep::simulation
