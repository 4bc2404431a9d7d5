// Knowing within a millisecond that a peer on this host has died.
//
// An end-of-file comes late: the kernel closes files after it has freed the memory, and a forked child may keep them
// open. A robust mutex does not: the kernel releases it as the first thing when its owner's thread ends, however it
// ends. Each rank's engine thread holds one for as long as the engine lives; whoever can take it knows that the owner
// is gone.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace lockstep::heap {

enum class Life : std::uint32_t {
  absent = 0,  ///< has not arrived yet
  alive = 1,
  left = 2,  ///< stopped its engine in good order
  dead = 3,
};

/// Lies in shared memory. Zero bytes are not a valid state: call `initialise` once, before anybody else looks.
class LivenessWord {
 public:
  void initialise();

  /// The calling thread declares this rank alive, until `leave` or its death. To be called by one thread only.
  void hold(pid_t pid);

  /// Called by the thread that holds.
  void leave();

  /// Any thread of any process.
  Life probe();

  pid_t pid() const { return pid_.load(std::memory_order_relaxed); }

 private:
  pthread_mutex_t mutex_;
  std::atomic<Life> state_;
  std::atomic<pid_t> pid_;
};

}  // namespace lockstep::heap
