#include "heap/liveness.hpp"

#include <cerrno>
#include <new>

#include "base/fd.hpp"

namespace lockstep::heap {

void LivenessWord::initialise() {
  new (&state_) std::atomic<Life>(Life::absent);
  new (&pid_) std::atomic<pid_t>(0);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  errno = pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (errno != 0) throw_errno("make a robust mutex");
}

void LivenessWord::hold(pid_t pid) {
  errno = pthread_mutex_lock(&mutex_);
  if (errno != 0) throw_errno("declare this rank alive");
  pid_.store(pid, std::memory_order_relaxed);
  state_.store(Life::alive, std::memory_order_release);
}

void LivenessWord::leave() {
  state_.store(Life::left, std::memory_order_seq_cst);
  pthread_mutex_unlock(&mutex_);
}

Life LivenessWord::probe() {
  const Life state = state_.load(std::memory_order_acquire);
  if (state != Life::alive) return state;
  const int result = pthread_mutex_trylock(&mutex_);
  if (result == EBUSY) return Life::alive;
  // Taken. Either the owner has died (then the lock is never made consistent again, so everybody who asks later is
  // told ENOTRECOVERABLE), or it has just left in good order.
  if (result == 0 || result == EOWNERDEAD) pthread_mutex_unlock(&mutex_);
  if (result == 0) return state_.load(std::memory_order_acquire);
  state_.store(Life::dead, std::memory_order_release);
  return Life::dead;
}

}  // namespace lockstep::heap
