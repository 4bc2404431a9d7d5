#include "transport/tcp/lasting_link.hpp"

#include <algorithm>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

// The peer is told of what has arrived after so many bytes or frames, whichever comes first.
constexpr std::size_t kConfirmBytes = 256 << 10;
constexpr std::uint64_t kConfirmFrames = 128;

constexpr std::size_t kMostSpare = 16;  // buffers
constexpr std::size_t kLargestSpare = 4 << 10;

}  // namespace

Copies::Copy Copies::of(std::span<const std::byte> data) {
  Copy& copy = copies_[{data.data(), data.size()}];
  if (!copy) {
    copy = std::make_shared<const SpareMemory>(data.size());
    std::copy(data.begin(), data.end(), copy->data());
  }
  return copy;
}

LastingLink::LastingLink(std::unique_ptr<net::Stream> stream, std::uint32_t epoch)
    : epoch_(epoch), socket_(std::make_unique<Link>(std::move(stream), epoch)) {}

void LastingLink::send(std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation) {
  if (body.empty()) return keep(head, {}, nullptr, operation);
  Copies::Copy copy = Copies().of(body);
  const std::span<const std::byte> copied = copy->span();
  keep(head, copied, std::move(copy), operation);
}

void LastingLink::lend(std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation) {
  keep(head, body, nullptr, operation);
}

// Where earlier frames wait, the socket has no room; whoever sees to it will send this one too.
void LastingLink::keep(std::span<const std::byte> head, std::span<const std::byte> body, Copies::Copy copy,
                       std::uint64_t operation) {
  std::vector<std::byte> bytes;
  if (!spare_.empty()) {
    bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  bytes.assign(head.begin(), head.end());
  const bool first = next_ == kept_.size();
  kept_.push_back({.head = std::move(bytes), .body = body, .copy = std::move(copy), .operation = operation});
  if (first) flush();
}

void LastingLink::give_back(std::uint64_t operation, Copies& copies) {
  for (Kept& frame : kept_) {
    if (frame.operation != operation || frame.body.empty() || frame.copy) continue;
    frame.copy = copies.of(frame.body);
    frame.body = frame.copy->span();
  }
}

// Frames are counted when they arrive, so what was never begun is missed by nobody. While the peer has not yet said
// what it has, none is known to be such.
void LastingLink::abandon(std::uint64_t operation) {
  if (!resuming_) {
    const auto first = kept_.begin() + static_cast<std::ptrdiff_t>(next_ + (in_frame_ ? 1 : 0));
    kept_.erase(std::remove_if(first, kept_.end(), [&](const Kept& frame) { return frame.operation == operation; }),
                kept_.end());
  }
}

bool LastingLink::has_sent(std::uint64_t operation) const {
  return std::none_of(kept_.begin() + static_cast<std::ptrdiff_t>(next_), kept_.end(),
                      [&](const Kept& frame) { return frame.operation == operation; });
}

void LastingLink::place(std::uint32_t kind, std::size_t prefix, net::FrameReader::FindPlace find) {
  placings_.push_back({.kind = kind, .prefix = prefix, .find = std::move(find)});
  if (connected()) socket_->reader().place(kind, prefix, placings_.back().find);
}

void LastingLink::share_evenly() {
  shares_ = true;
  if (connected()) socket_->share_evenly();
}

void LastingLink::flush() {
  while (wants_to_send()) {
    const bool begins_with_frame = in_frame_ || words_.empty();
    const std::size_t offered = gather();
    const std::size_t gone = socket_->give(parts_);
    note_gone(gone);
    if (gone == offered) continue;
    if (!socket_->is_direct()) in_frame_ = begins_with_frame;  // it may hold on to what it has not taken
    return;
  }
}

// What goes next, in order, and how much that is. Only of a direct socket is it known that something else may come
// first the next time, if it does not take all of it.
std::size_t LastingLink::gather() {
  parts_.clear();
  std::size_t frame = next_;
  const bool all = socket_->is_direct();
  if (in_frame_) gather(kept_[frame++], sent_of_next_);
  if (!words_.empty() && (all || !in_frame_)) parts_.push_back(words_);
  for (; frame < kept_.size() && !resuming_; ++frame) {
    if (all ? parts_.size() + 2 > net::Stream::kMostParts : !parts_.empty()) break;
    gather(kept_[frame], 0);
  }
  std::size_t bytes = 0;
  for (const auto& part : parts_) bytes += part.size();
  return bytes;
}

void LastingLink::gather(const Kept& frame, std::size_t from) {
  const std::size_t of_head = std::min(from, frame.head.size());
  if (of_head < frame.head.size()) parts_.push_back(std::span(frame.head).subspan(of_head));
  if (from < frame.size()) parts_.push_back(frame.body.subspan(from - of_head));
}

void LastingLink::note_gone(std::size_t bytes) {
  while (bytes > 0) {
    if (!in_frame_ && !words_.empty()) {
      const std::size_t of_words = std::min(bytes, words_.size());
      words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(of_words));
      bytes -= of_words;
      continue;
    }
    const std::size_t of_frame = std::min(bytes, kept_[next_].size() - sent_of_next_);
    bytes -= of_frame;
    sent_of_next_ += of_frame;
    in_frame_ = sent_of_next_ < kept_[next_].size();
    if (in_frame_) continue;
    ++next_;
    sent_of_next_ = 0;
  }
}

std::optional<net::Frame> LastingLink::receive() {
  while (connected()) {
    auto frame = socket_->receive();
    if (!frame) return std::nullopt;
    if (const auto frames = unpack_confirmation(*frame)) {
      resuming_ ? go_on_after(*frames) : forget_until(*frames);
      continue;
    }
    if (resuming_) throw net::BadFrame("a frame before it said what it has");
    ++received_;
    const std::size_t bytes = frame->payload.size() + frame->placed;
    received_on_socket_ += bytes;
    confirm_if_due(bytes);
    return frame;
  }
  return std::nullopt;
}

// Does not send it at once: a socket that is lost over it would take the frame along that has just been counted.
void LastingLink::confirm_if_due(std::size_t bytes) {
  untold_bytes_ += bytes;
  if (untold_bytes_ < kConfirmBytes && received_ - told_ < kConfirmFrames) return;
  const auto words = pack_confirmation(received_, epoch_);
  words_.insert(words_.end(), words.begin(), words.end());
  told_ = received_;
  untold_bytes_ = 0;
}

void LastingLink::forget_until(std::uint64_t frames) {
  if (frames < confirmed_ || frames - confirmed_ > next_) throw net::BadFrame("a confirmation of what was not sent");
  for (; confirmed_ < frames; ++confirmed_, --next_) {
    std::vector<std::byte>& head = kept_.front().head;
    if (head.capacity() <= kLargestSpare && spare_.size() < kMostSpare) spare_.push_back(std::move(head));
    kept_.pop_front();
  }
}

// What the peer has may be more than was known to be sent: the old socket was lost before it could say so.
void LastingLink::go_on_after(std::uint64_t frames) {
  if (frames < confirmed_ || frames - confirmed_ > kept_.size())
    throw net::BadFrame("a confirmation of what was not sent");
  next_ = frames - confirmed_;
  forget_until(frames);
  resuming_ = false;
  flush();
}

void LastingLink::drop_socket() { socket_.reset(); }

void LastingLink::replace_socket(std::unique_ptr<net::Stream> stream) {
  socket_ = std::make_unique<Link>(std::move(stream), epoch_);
  for (const Placing& one : placings_) socket_->reader().place(one.kind, one.prefix, one.find);
  if (shares_) socket_->share_evenly();
  resuming_ = true;
  in_frame_ = false;
  received_on_socket_ = 0;
  next_ = 0;
  sent_of_next_ = 0;
  words_ = pack_confirmation(received_, epoch_);
  told_ = received_;
  untold_bytes_ = 0;
  flush();
}

}  // namespace lockstep::transport::tcp
