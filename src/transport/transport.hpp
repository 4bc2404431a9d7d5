// How ranks reach each other. One of the two extension points: a new way to move bytes is a folder with one class.
//
// Every transport carries notices (short, ordered, to everybody) and knows the health of its peers. Beyond that it
// offers SharedMemory, when ranks can address each other's memory and collectives work in place, or Messages, bytes
// sent from one rank to another.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/error.hpp"
#include "transport/notice.hpp"
#include "transport/offer.hpp"

namespace lockstep::transport {

enum class Health {
  alive,
  left,         ///< stopped its engine in good order
  dead,         ///< its process is gone
  stopped,      ///< its process does not run (SIGSTOP), though the rest of the job does
  unreachable,  ///< its host does not answer any more
};

/// Why the world has ended. The first verdict wins, and every rank sees the same one.
struct Verdict {
  ErrorCode code = ErrorCode::internal;
  int rank = -1;  ///< the rank to blame, or -1
  std::string text;
};

/// What lies between hosts.
struct Network {
  std::chrono::nanoseconds trip{};  ///< there and back
  double rate = 0;                  ///< bytes per second, through the port of a host

  /// What a port carries during a round trip, within reason; 0: nothing is known.
  std::size_t bytes_per_trip() const {
    if (trip.count() <= 0 || rate <= 0) return 0;
    return static_cast<std::size_t>(std::clamp(std::chrono::duration<double>(trip).count() * rate, 4096.0, 16777216.0));
  }
};

/// What a rank says of itself while it waits (src/engine/standstill.cpp explains how it is used).
struct Standstill {
  bool waits = false;           ///< without limit, and nothing of the engine's can go on by itself
  std::uint64_t version = 0;    ///< not 0: nor can anything else in its process; another number after every change
  std::uint64_t confirmed = 0;  ///< a hash of all ranks' versions, after which nothing had changed here
  std::string doing = {};       ///< for people; goes with the version
};

/// Direct access to what lies in the arenas of all ranks.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;

  /// nullptr for private memory of another process, which only `read` and `write` reach.
  virtual std::byte* at(int owner, Place place) = 0;

  /// kNowhere unless all of it lies in this rank's arena.
  virtual Place place_of(const void* address, std::size_t bytes) = 0;

  /// A place for memory outside the arena, if every peer can read and write it there; otherwise kNowhere. Soon after
  /// the start that is not known yet: waits for it, at most so long.
  virtual Place private_place(const void* address, std::chrono::milliseconds patience = {}) = 0;

  /// Finds out whether ranks reach each other's private memory, once all are there; costs next to nothing afterwards.
  virtual void learn_reach() = 0;

  /// Copies between this rank's memory and private memory of `owner`, `offset` bytes from `place`. False when the owner
  /// is gone. Throws Error(system) when the operating system refuses.
  virtual bool read(int owner, Place place, std::size_t offset, std::span<std::byte> to) = 0;
  virtual bool write(int owner, Place place, std::size_t offset, std::span<const std::byte> from) = 0;

  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* block) = 0;

  /// As `allocate`, at a page, but memory is taken only for those parts that are committed; they must be, before they
  /// are touched. nullptr: no room.
  virtual void* reserve(std::size_t) { return nullptr; }
  virtual bool commit(void*, std::size_t) { return false; }
  virtual std::size_t arena_bytes() { return 0; }

  /// Keeps the memory mapped, also when the transport is gone.
  virtual std::shared_ptr<const void> mapping() { return nullptr; }

  /// Sixteen words that belong to `owner`'s notice at `position`, zero when it was posted. All ranks may use them.
  virtual std::atomic<std::uint32_t>* scratch(int owner, std::uint64_t position) = 0;

  /// Where `owner` makes its offers.
  virtual Board& board(int owner) = 0;

  /// Brackets any access to a peer's memory. False: the world has ended, hands off.
  virtual bool begin_access() = 0;
  virtual void end_access() = 0;
};

/// Brackets access to peers' memory, also when an exception ends it. Without shared memory it is always allowed.
class Access {
 public:
  explicit Access(SharedMemory* shared) : shared_(shared), allowed_(shared == nullptr || shared->begin_access()) {}
  ~Access() {
    if (allowed_ && shared_ != nullptr) shared_->end_access();
  }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  explicit operator bool() const { return allowed_; }

 private:
  SharedMemory* shared_;
  bool allowed_;
};

/// Bytes from one rank to another.
class Messages {
 public:
  virtual ~Messages() = default;

  /// The peer receives it under the same (operation, part). The data is copied or gone on return.
  virtual void send(int peer, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) = 0;

  /// The same without a copy: the data may be read where it lies until `close`. It may change as soon as the peer has
  /// said something that it can know only from this message, since then it has it.
  virtual void lend(int peer, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) {
    send(peer, operation, part, data);
  }

  /// The message may be written there as it comes, until `receive` has returned it, or `close`.
  virtual void expect(int /*peer*/, std::uint64_t /*operation*/, std::uint32_t /*part*/, std::span<std::byte> /*to*/) {}

  /// Fills `data` if the message has arrived; where it was expected that is nothing to do. Throws Error(internal) when
  /// its size is another.
  virtual bool receive(int peer, std::uint64_t operation, std::uint32_t part, std::span<std::byte> data) = 0;

  /// The operation has ended here: nothing that it has lent is read any more, nor written where it expects something.
  virtual void close(std::uint64_t /*operation*/) {}

  /// The world has ended, and with it the operation on all ranks: nobody needs what it has not sent yet.
  virtual void abandon(std::uint64_t operation) { close(operation); }

  /// It has failed on this rank alone: what peers still send for it is dropped, instead of kept for somebody to ask.
  virtual void refuse(std::uint64_t operation) { close(operation); }
};

/// Closes the operation when its algorithm ends, however that ends; but not in a forked child, whose copy of the
/// transport may be locked for ever, or gone already.
class MessageLease {
 public:
  MessageLease(Messages& messages, std::uint64_t operation)
      : messages_(messages), operation_(operation), process_(::getpid()) {}
  ~MessageLease() {
    if (::getpid() == process_) messages_.close(operation_);
  }
  MessageLease(const MessageLease&) = delete;
  MessageLease& operator=(const MessageLease&) = delete;

 private:
  Messages& messages_;
  std::uint64_t operation_;
  pid_t process_;
};

/// Threads: `post`, `next`, `release` and all of Messages are called under one lock of the engine; the rest from
/// anywhere.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The same number for ranks that share a host.
  virtual int host_of(int /*rank*/) const { return 0; }

  /// The clock by which everything waits. A simulation has its own.
  virtual std::chrono::steady_clock::time_point now() const { return std::chrono::steady_clock::now(); }

  /// Appends to this rank's notices; all others will read them in this order. Returns its position, or nullopt when
  /// peers have not yet released enough of the earlier ones: try again later.
  virtual std::optional<std::uint64_t> post(const Notice& notice) = 0;

  /// The same for a notice to which a tensor of at most so many bytes is attached; all others get it with the notice.
  virtual std::optional<std::uint64_t> post_with(const Notice& notice, std::span<const std::byte> /*attached*/) {
    return post(notice);
  }
  virtual std::size_t most_attached() const { return 0; }

  /// As the ranks have measured it so far; no two of them need to know the same. Changes now and then.
  virtual Network network() const { return {}; }
  virtual std::size_t bytes_per_trip() const { return 0; }

  /// How long an answer may take for which it pays to stay awake; 0: nothing is known of that.
  virtual std::chrono::nanoseconds answer_time() const { return {}; }

  /// Changes whenever data has arrived, also when it is not yet a whole notice or message.
  virtual std::uint64_t arrivals() const { return 0; }

  /// Whether all that this rank has to say for the operation is on its way. An operation is not over before: afterwards
  /// nobody may be there who would send the rest.
  virtual bool has_sent(std::uint64_t /*operation*/) { return true; }

  /// The next unread notice of a peer, if there is one.
  virtual NoticeRef next(int peer) = 0;

  /// This rank is done with a peer's notice, and with the operation that it announced.
  virtual void release(int peer, std::uint64_t position) = 0;

  /// What this transport can do; nullptr when it cannot. At least one of the two is there.
  virtual SharedMemory* shared() { return nullptr; }
  virtual Messages* messages() { return nullptr; }

  /// Sleeps until somebody rings, at most `limit`, unless `work_appeared()`, called once after this rank can be rung.
  virtual void sleep(std::chrono::nanoseconds limit, const std::function<bool()>& work_appeared) = 0;

  /// Wakes whoever sleeps on that rank's bell; cheap when nobody does. What it is to see must have been written with
  /// sequential consistency, or it may sleep on until its limit. `ring_everybody` includes this rank.
  virtual void ring(int rank) = 0;
  virtual void ring_everybody() = 0;

  virtual Health health(int peer) = 0;

  /// Process id of a peer, for messages; 0 when it has none of its own.
  virtual long process_of(int peer) const = 0;

  /// Ends the world for everybody, unless that has happened already; wakes everybody.
  virtual void pronounce(const Verdict& verdict) = 0;
  virtual std::optional<Verdict> verdict() const = 0;

  /// A rank says how it stands, and reads how others do. `threads` are those of the engine and those that wait in it.
  virtual void declare(const Standstill& standstill, std::span<const pid_t> threads) = 0;
  /// Without `doing`, which may be asked for when the rank cannot change it any more.
  virtual Standstill standstill(int rank) = 0;
  virtual std::string doing(int rank) = 0;
  /// What the rank has declared, if it is a part of this process; at most some of them.
  virtual std::vector<pid_t> threads_here(int rank) = 0;

  /// How often the thread that the transport has of its own has let go of every lock; nullopt: there is none.
  virtual std::optional<std::uint64_t> own_rounds() const { return std::nullopt; }

  /// A word of each rank, zero at first, that all ranks may change: with it survivors agree after a verdict.
  virtual std::uint64_t seat(int rank) = 0;
  /// False when it was not `expected` any more. Wakes everybody when it was.
  virtual bool change_seat(int rank, std::uint64_t expected, std::uint64_t desired) = 0;

  /// After a verdict: returns when no living peer touches this rank's memory any more.
  virtual void quiesce() = 0;

  /// Declares this rank alive, and gone in good order; both called by the engine's own thread.
  virtual void arrive() = 0;
  virtual void leave() = 0;
};

}  // namespace lockstep::transport
