#include "transport/tcp/inbox.hpp"

#include <fmt/core.h>

#include <cstring>

namespace lockstep::transport::tcp {

void Inbox::add(const Notice& notice) { unread_.push_back(std::make_unique<const Notice>(notice)); }

void Inbox::add(const Piece& piece) {
  Arriving& message = messages_[{piece.operation, piece.part}];
  if (message.bytes.empty()) message.total = piece.total;
  if (message.total != piece.total || piece.data.size() > message.total - message.bytes.size())
    throw net::BadFrame("a piece that does not fit its message");
  message.bytes.insert(message.bytes.end(), piece.data.begin(), piece.data.end());
}

NoticeRef Inbox::next() {
  const std::uint64_t position = notices_++;
  const auto held = held_.emplace(position, std::move(unread_.front())).first;
  unread_.pop_front();
  return {.head = &held->second->head, .detail = &held->second->detail, .position = position};
}

bool Inbox::has_message(std::uint64_t operation, std::uint32_t part) const {
  const auto found = messages_.find({operation, part});
  return found != messages_.end() && found->second.bytes.size() == found->second.total;
}

void Inbox::take_message(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to) {
  const auto found = messages_.find({operation, part});
  const std::vector<std::byte>& bytes = found->second.bytes;
  if (bytes.size() != to.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("a peer sent {} bytes where {} were expected", bytes.size(), to.size()));
  }
  if (!to.empty()) std::memcpy(to.data(), bytes.data(), to.size());
  messages_.erase(found);
}

}  // namespace lockstep::transport::tcp
