// Threads of execution that one real thread runs by turns: who runs next is the test's choice, and so repeatable.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace lockstep::simulation {

/// Runs `body` on a stack of its own, from `resume` to `pause` and on. Exceptions must not leave the body.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From outside: goes on with the body until it pauses or ends.
  void resume();

  /// From inside: goes back to whoever resumed it.
  void pause();

  bool ended() const { return ended_; }

 private:
  static void enter(unsigned high, unsigned low);
  void run();

  // The C++ runtime keeps the exceptions being handled per thread. A fiber may pause inside a handler, so each has its
  // own.
  struct ExceptionState {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };
  void swap_exceptions();

  std::function<void()> body_;
  std::byte* stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  ExceptionState exceptions_;
  const void* outside_stack_ = nullptr;
  std::size_t outside_bytes_ = 0;
  void* shadow_ = nullptr;
  bool ended_ = false;
};

}  // namespace lockstep::simulation
