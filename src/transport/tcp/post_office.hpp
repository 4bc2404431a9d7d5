// Notices and messages between this rank and all others, over the data connections.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/tcp/inbox.hpp"
#include "transport/tcp/near_memory.hpp"
#include "transport/tcp/switchboard.hpp"

namespace lockstep::transport::tcp {

/// REQUIRES a lock of its owner's.
class PostOffice {
 public:
  PostOffice(std::size_t ranks, std::uint32_t epoch)
      : inboxes_(ranks), in_reach_(ranks), seen_nothing_(ranks), epoch_(epoch) {}

  /// By whom everything goes; to be told once, before anything else.
  void use(Switchboard& switchboard) { switchboard_ = &switchboard; }

  void post(const Notice& notice, std::span<const std::byte> attached);
  void send_to_all(std::span<const std::byte> head, std::span<const std::byte> rest = {}, std::uint64_t operation = 0);

  // As in transport.hpp.
  void send(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data);
  void lend(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data);
  void expect(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> to);
  void close(std::uint64_t operation);
  void abandon(std::uint64_t operation);
  void refuse(std::uint64_t operation);

  /// The peer reads this rank's memory: what is lent to it need not go through the connection.
  void note_in_reach(int peer) { in_reach_[static_cast<std::size_t>(peer)] = true; }
  void note_fetched(int by, std::uint64_t number) { lendings_.note_fetched(by, number); }
  void note_lost(int peer) { lendings_.forget(peer); }
  bool has_to_be_fetched(std::uint64_t operation) const { return lendings_.has(operation); }
  bool has_to_be_fetched() const { return !lendings_.empty(); }
  /// The message of that number is here, or not wanted.
  void say_fetched(int from, std::uint64_t number);

  Inbox& inbox(int from) { return inboxes_[static_cast<std::size_t>(from)]; }

  /// Somebody has asked for something of this peer in vain. True when it is time to look at the sockets again: who asks
  /// all peers in turn makes one look, not one for each.
  bool is_asked_again(int from);

  /// Something was found, and who has found it will ask for more: the first time it need not be looked for.
  void note_found();

 private:
  template <class Give>
  void in_pieces(std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data, const Give& give);

  Switchboard* switchboard_ = nullptr;
  std::vector<Inbox> inboxes_;  // by rank
  std::vector<bool> in_reach_;  // by rank: of whom this rank is
  Lendings lendings_;
  std::vector<bool> seen_nothing_;  // by rank: asked for since the last look at the sockets
  const std::uint32_t epoch_;
};

}  // namespace lockstep::transport::tcp
