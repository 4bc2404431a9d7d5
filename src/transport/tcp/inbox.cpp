#include "transport/tcp/inbox.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace lockstep::transport::tcp {
namespace {

SpareMemory copy_of(std::span<const std::byte> attached) {
  if (attached.empty()) return {};
  SpareMemory copy(attached.size());
  std::copy(attached.begin(), attached.end(), copy.data());
  return copy;
}

}  // namespace

// One that is whole leaves alone what is being read for another: a peer might send it on its other connection.
void Inbox::add(const Announcement& announcement) {
  unread_.push_back(std::make_unique<const Announced>(
      Announced{.notice = announcement.notice,
                .attached = announcement.placed != 0 ? std::move(attached_) : copy_of(announcement.attached)}));
}

std::span<std::byte> Inbox::place_for_attached(std::size_t bytes) {
  attached_ = SpareMemory(bytes);
  return attached_.span();
}

bool Inbox::is_refused(std::uint64_t operation) const {
  return std::find(refused_.begin(), refused_.end(), operation) != refused_.end();
}

bool Inbox::add(const Whereabouts& where) {
  if (is_refused(where.operation)) return false;
  Arriving& message = messages_[{where.operation, where.part}];
  if (message.begun) throw net::BadFrame("a message that was sent already");
  message.begun = true;
  message.total = message.arrived = where.total;
  message.where = where;
  return true;
}

void Inbox::add(const Piece& piece) {
  if (is_refused(piece.operation)) return;
  Arriving& message = messages_[{piece.operation, piece.part}];
  if (!message.begun) message.total = piece.total;
  message.begun = true;
  const std::size_t bytes = piece.data.size() + piece.placed;
  if (message.total != piece.total || bytes > message.total - message.arrived)
    throw net::BadFrame("a piece that does not fit its message");
  if (!message.has_place()) {
    message.bytes.insert(message.bytes.end(), piece.data.begin(), piece.data.end());
  } else if (!piece.data.empty()) {
    std::memcpy(message.place.data() + message.arrived, piece.data.data(), piece.data.size());
  }
  message.arrived += bytes;
}

void Inbox::expect(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to) {
  Arriving& message = messages_[{operation, part}];
  message.place = to;
  if (!message.begun || !message.has_place() || message.where) return;
  if (!message.bytes.empty()) std::memcpy(to.data(), message.bytes.data(), message.bytes.size());
  message.bytes = {};
}

void Inbox::refuse(std::uint64_t operation) {
  constexpr std::size_t kMostRefused = 1024;  // what comes for more would be kept until the engine ends
  refused_.push_back(operation);
  if (refused_.size() > kMostRefused) refused_.pop_front();
}

std::span<std::byte> Inbox::place_for(const Piece& piece, std::size_t bytes) {
  const auto found = messages_.find({piece.operation, piece.part});
  if (found == messages_.end()) return {};
  const Arriving& message = found->second;
  const bool fits = message.place.size() == piece.total && (!message.begun || message.total == piece.total) &&
                    bytes <= piece.total - message.arrived;
  return fits && !message.place.empty() ? message.place.subspan(message.arrived, bytes) : std::span<std::byte>{};
}

NoticeRef Inbox::next() {
  const std::uint64_t position = notices_++;
  const auto held = held_.emplace(position, std::move(unread_.front())).first;
  unread_.pop_front();
  const Announced& announced = *held->second;
  return {.head = &announced.notice.head,
          .detail = &announced.notice.detail,
          .position = position,
          .attached = announced.attached.span()};
}

bool Inbox::has_message(std::uint64_t operation, std::uint32_t part) const {
  const auto found = messages_.find({operation, part});
  return found != messages_.end() && found->second.begun && found->second.arrived == found->second.total;
}

const Whereabouts* Inbox::where_is(std::uint64_t operation, std::uint32_t part) const {
  const auto found = messages_.find({operation, part});
  return found != messages_.end() && found->second.where ? &*found->second.where : nullptr;
}

void Inbox::take_message(std::uint64_t operation, std::uint32_t part, std::span<std::byte> to) {
  const auto found = messages_.find({operation, part});
  const Arriving& message = found->second;
  if (message.total != to.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("a peer sent {} bytes where {} were expected", message.total, to.size()));
  }
  const std::byte* from = message.has_place() ? message.place.data() : message.bytes.data();
  if (!to.empty() && from != to.data() && !message.where) std::memcpy(to.data(), from, to.size());
  messages_.erase(found);
}

}  // namespace lockstep::transport::tcp
