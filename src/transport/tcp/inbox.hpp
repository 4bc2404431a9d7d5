// What one peer has sent and the engine has not taken yet.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {

class Inbox {
 public:
  void add(const Notice& notice);
  /// Throws net::BadFrame.
  void add(const Piece& piece);

  bool has_notice() const { return !unread_.empty(); }
  /// REQUIRES has_notice. Readable until it is released.
  NoticeRef next();
  void release(std::uint64_t position) { held_.erase(position); }

  /// Whether the whole message has arrived.
  bool has_message(std::uint64_t operation, std::uint32_t part) const;
  /// REQUIRES has_message. Throws Error(internal) when its size is another.
  void take_message(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to);

 private:
  // Bytes of a message as they come.
  struct Arriving {
    std::vector<std::byte> bytes;
    std::uint64_t total = 0;
  };
  using MessageKey = std::pair<std::uint64_t, std::uint32_t>;  // operation, part

  std::uint64_t notices_ = 0;  // so far
  std::deque<std::unique_ptr<const Notice>> unread_;
  std::map<std::uint64_t, std::unique_ptr<const Notice>> held_;  // by position
  std::map<MessageKey, Arriving> messages_;
};

}  // namespace lockstep::transport::tcp
