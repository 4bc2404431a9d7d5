// How the ranks of one host find each other: an abstract Unix socket whose name follows from the job's secret.
//
// Rank 0 listens, the others connect. A connection counts only if it comes from the same user and if both sides have
// proved that they hold the secret; until then a fixed number of bytes is read and nothing is interpreted. When all are
// there, rank 0 makes one descriptor (the shared memory of the host) and hands it to everybody.
//
//     listener -> caller   Challenge   a nonce
//     caller -> listener   Hello       who I am, my nonce, proof over both nonces
//     listener -> caller   Answer      the listener's proof; then, when all are there, Invitation with the descriptor
//     caller -> listener   one byte    I am ready
//     listener -> caller   one byte    so is everybody: go
//
// All messages have a fixed size. A connection stays open until the meeting is over, so a rank that dies meanwhile is
// noticed; after that the shared memory tells.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace lockstep::rendezvous {

struct MeetingOptions {
  int rank = 0;
  int size = 1;
  std::uint32_t epoch = 0;
  std::string job;
  std::string secret;
  std::string version;
  std::chrono::milliseconds timeout{60'000};
  /// Asked several times a second while others are awaited. True: one of them will never come, so give up.
  std::function<bool()> hopeless = {};
};

class LocalMeeting {
 public:
  /// Blocks until all ranks have arrived. `make_descriptor` is called on rank 0 only, once, when they have.
  /// Throws Error(unavailable) that names the missing ranks, on every rank that did arrive.
  LocalMeeting(const MeetingOptions& options, const std::function<Fd()>& make_descriptor);
  ~LocalMeeting();

  /// Process ids by rank.
  const std::vector<pid_t>& pids() const { return pids_; }

  /// The descriptor that rank 0 made.
  const Fd& descriptor() const { return descriptor_; }

  /// Blocks until every rank has called it. Throws Error(unavailable) when one died instead.
  void ready();

 private:
  class Listener;
  class Caller;

  MeetingOptions options_;
  std::chrono::steady_clock::time_point deadline_;
  std::vector<pid_t> pids_;
  Fd descriptor_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Caller> caller_;
};

}  // namespace lockstep::rendezvous
