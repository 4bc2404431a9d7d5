// Messages between ranks of one host that share no memory: the receiver reads them where they lie in the sender's
// process, so a byte is copied once, and when the receiver has a place for it.
//
// Only where a message lies travels over the connection. The operation has not sent it before the receiver has said
// that it has fetched it (`Transport::has_sent`), so normally it is read before its owner may change it. Where an
// operation ends early all the same, the sender keeps a copy and says so on the slip that belongs to the message. The
// receiver looks at the slip after it has read: what it has read counts only if the message had not moved meanwhile.
// The slip bears the sender's token; another process that has come by the same id does not have it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/spare_memory.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {

/// Of this process.
std::uint64_t token_of_process();
std::uint64_t probe_of_process();

/// Whether the memory of that rank's process can be read. Rules differ from host to host (ptrace_scope, containers), so
/// it is tried out.
bool is_in_reach(const Hello& rank);

/// Whether others could read it at all: memory of devices cannot be.
bool can_be_read(std::span<const std::byte> data);

/// REQUIRES to.size() == where.total. False when the sender is gone, or has abandoned the message. Throws Error(system)
/// when the operating system refuses.
bool fetch(const Hello& sender, const Whereabouts& where, std::span<std::byte> to);

/// What this rank's peers are to fetch from it. REQUIRES a lock of its owner's.
class Lendings {
 public:
  Lendings() = default;
  Lendings(const Lendings&) = delete;
  Lendings& operator=(const Lendings&) = delete;

  /// The data stays where it is, until it has been fetched, or `give_back`.
  Whereabouts lend(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data);

  /// Something of the operation has not been fetched.
  bool has(std::uint64_t operation) const;
  bool empty() const { return lendings_.empty(); }

  /// Passes over what it does not know: it may have been abandoned.
  void note_fetched(int by, std::uint64_t number);

  /// Copies what is left of the operation.
  void give_back(std::uint64_t operation);
  /// Nobody wants it any more.
  void abandon(std::uint64_t operation);
  /// The peer will fetch nothing any more.
  void forget(int peer);

 private:
  // Read by other processes. Cleared before its memory is given back.
  struct Slip {
    ~Slip();
    std::atomic<std::uint64_t> token = token_of_process();
    std::atomic<std::uint64_t> data = 0;  // address
  };
  struct Lending {
    int to = 0;
    std::uint64_t operation = 0;
    std::span<const std::byte> data;
    SpareMemory copy;
    std::unique_ptr<Slip> slip;  // the last: it is cleared before the copy goes
  };
  friend bool fetch(const Hello& sender, const Whereabouts& where, std::span<std::byte> to);

  std::map<std::uint64_t, Lending> lendings_;  // by number
  std::uint64_t next_ = 1;
};

}  // namespace lockstep::transport::tcp
