// What one peer has sent and the engine has not taken yet.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/spare_memory.hpp"
#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {

class Inbox {
 public:
  /// REQUIRES: what it says is placed lies where `place_for_attached` last said.
  void add(const Announcement& announcement);
  /// Throws net::BadFrame.
  void add(const Piece& piece);
  /// The same. False when the message is not wanted.
  bool add(const Whereabouts& where);

  /// Where that belongs which comes with the next notice, which must be all there is of it.
  std::span<std::byte> place_for_attached(std::size_t bytes);

  bool has_notice() const { return !unread_.empty(); }
  /// REQUIRES has_notice. Readable until it is released.
  NoticeRef next();
  void release(std::uint64_t position) { held_.erase(position); }

  /// From now on the message goes there as it comes, until it is taken or `forget` was called.
  void expect(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to);
  /// Where the next `bytes` bytes of a message belong; empty when it is not expected.
  std::span<std::byte> place_for(const Piece& piece, std::size_t bytes);
  /// All messages of the operation. `emit(range)` for each place where one was expected, `drop(number)` for each that
  /// the sender still keeps.
  template <class Emit, class Drop>
  void forget(std::uint64_t operation, const Emit& emit, const Drop& drop) {
    const auto first = messages_.lower_bound({operation, 0});
    auto last = first;
    for (; last != messages_.end() && last->first.first == operation; ++last) {
      emit(last->second.place);
      if (last->second.where) drop(last->second.where->number);
    }
    messages_.erase(first, last);
  }

  /// The operation is over here alone: what still comes for it is dropped.
  void refuse(std::uint64_t operation);

  /// Whether the whole message has arrived.
  bool has_message(std::uint64_t operation, std::uint32_t part) const;
  /// Where the message lies with its sender; nullptr: it comes here by itself.
  const Whereabouts* where_is(std::uint64_t operation, std::uint32_t part) const;
  /// REQUIRES has_message. Throws Error(internal) when its size is another. It must have been fetched already if it
  /// lies with its sender.
  void take_message(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to);

 private:
  struct Announced {
    Notice notice;
    SpareMemory attached;
  };
  // A message as it comes: into the place where it is expected, if that has its size, or else into memory of its own.
  struct Arriving {
    bool begun = false;
    std::uint64_t total = 0;
    std::size_t arrived = 0;
    std::vector<std::byte> bytes;
    std::span<std::byte> place;
    std::optional<Whereabouts> where;

    bool has_place() const { return !place.empty() && place.size() == total; }
  };
  bool is_refused(std::uint64_t operation) const;

  using MessageKey = std::pair<std::uint64_t, std::uint32_t>;  // operation, part

  std::uint64_t notices_ = 0;  // so far
  SpareMemory attached_;       // to the notice that is arriving
  std::deque<std::unique_ptr<const Announced>> unread_;
  std::map<std::uint64_t, std::unique_ptr<const Announced>> held_;  // by position
  std::map<MessageKey, Arriving> messages_;
  std::deque<std::uint64_t> refused_;  // operations, the last ones
};

}  // namespace lockstep::transport::tcp
