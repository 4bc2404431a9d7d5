#include "transport/tcp/post_office.hpp"

#include <algorithm>
#include <utility>

namespace lockstep::transport::tcp {
namespace {

// Less is at its place sooner through the connection than after two calls of the system and an answer.
constexpr std::size_t kLeastFetched = 16 << 10;

}  // namespace

void PostOffice::post(const Notice& notice, std::span<const std::byte> attached) {
  send_to_all(pack_head(Announcement{.notice = notice, .attached = attached}, epoch_), attached, notice.head.id);
}

void PostOffice::send_to_all(std::span<const std::byte> head, std::span<const std::byte> rest,
                             std::uint64_t operation) {
  for (int to = 0; to < static_cast<int>(inboxes_.size()); ++to) switchboard_->lend_data(to, head, rest, operation);
  if (!rest.empty()) switchboard_->give_back(operation);  // one copy for all, made while the bytes are on their way
}

template <class Give>
void PostOffice::in_pieces(std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data,
                           const Give& give) {
  const std::uint64_t total = data.size();
  do {
    const auto bytes = data.first(std::min(data.size(), kPieceBytes));
    data = data.subspan(bytes.size());
    give(pack_head(Piece{.operation = operation, .part = part, .total = total, .data = bytes}, epoch_), bytes);
  } while (!data.empty());
}

void PostOffice::send(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) {
  in_pieces(operation, part, data, [&](std::span<const std::byte> head, std::span<const std::byte> bytes) {
    switchboard_->send_data(to, head, bytes, operation);
  });
}

void PostOffice::lend(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) {
  if (data.size() >= kLeastFetched && in_reach_[static_cast<std::size_t>(to)] && can_be_read(data)) {
    if (switchboard_->health(to) == Health::alive)
      switchboard_->send_data(to, pack(lendings_.lend(to, operation, part, data), epoch_), {}, operation);
    return;
  }
  in_pieces(operation, part, data, [&](std::span<const std::byte> head, std::span<const std::byte> bytes) {
    switchboard_->lend_data(to, head, bytes, operation);
  });
}

void PostOffice::expect(int from, std::uint64_t operation, std::uint32_t part, std::span<std::byte> to) {
  inbox(from).expect(operation, part, to);
}

void PostOffice::say_fetched(int from, std::uint64_t number) {
  switchboard_->send_data(from, pack(Fetched{.number = number}, epoch_));
}

void PostOffice::close(std::uint64_t operation) {
  switchboard_->give_back(operation);
  lendings_.give_back(operation);
  std::vector<std::uint64_t> unwanted;
  for (int from = 0; from < static_cast<int>(inboxes_.size()); ++from) {
    inbox(from).forget(
        operation, [&](std::span<const std::byte> place) { switchboard_->take_back(from, place); },
        [&](std::uint64_t number) { unwanted.push_back(number); });
    // Only now: to send may find the connection lost, and then the last that has arrived is taken from it.
    for (const std::uint64_t number : std::exchange(unwanted, {})) say_fetched(from, number);
  }
}

void PostOffice::abandon(std::uint64_t operation) {
  switchboard_->abandon(operation);
  lendings_.abandon(operation);
  close(operation);
}

void PostOffice::refuse(std::uint64_t operation) {
  for (Inbox& inbox : inboxes_) inbox.refuse(operation);
  close(operation);
}

bool PostOffice::is_asked_again(int from) {
  const auto index = static_cast<std::size_t>(from);
  const bool again = seen_nothing_[index];
  if (again) note_found();
  seen_nothing_[index] = true;
  return again;
}

void PostOffice::note_found() { std::fill(seen_nothing_.begin(), seen_nothing_.end(), false); }

}  // namespace lockstep::transport::tcp
