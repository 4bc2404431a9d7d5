#include "transport/tcp/lasting_link.hpp"

#include <algorithm>

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

// The peer is told of what has arrived after so many bytes or frames, whichever comes first.
constexpr std::size_t kConfirmBytes = 256 << 10;
constexpr std::uint64_t kConfirmFrames = 128;

constexpr std::size_t kMostSpare = 16;  // buffers
constexpr std::size_t kLargestSpare = 2 * kPieceBytes;

}  // namespace

LastingLink::LastingLink(std::unique_ptr<net::Stream> stream, std::uint32_t epoch)
    : epoch_(epoch), socket_(std::make_unique<Link>(std::move(stream), epoch)) {}

std::vector<std::byte> LastingLink::fresh_buffer() {
  if (spare_.empty()) return {};
  std::vector<std::byte> buffer = std::move(spare_.back());
  spare_.pop_back();
  buffer.clear();
  return buffer;
}

void LastingLink::send(std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation) {
  std::vector<std::byte> frame = fresh_buffer();
  frame.reserve(head.size() + body.size());
  frame.insert(frame.end(), head.begin(), head.end());
  frame.insert(frame.end(), body.begin(), body.end());
  keep({.bytes = std::move(frame), .operation = operation});
}

void LastingLink::lend(std::span<const std::byte> head, std::span<const std::byte> body, std::uint64_t operation) {
  keep({.bytes = {head.begin(), head.end()}, .lent = body, .operation = operation});
}

// Where earlier frames wait, the socket has no room; whoever sees to it will send this one too.
void LastingLink::keep(Kept frame) {
  const bool first = next_ == kept_.size();
  kept_.push_back(std::move(frame));
  if (first) flush();
}

void LastingLink::give_back(std::uint64_t operation) {
  for (Kept& frame : kept_) {
    if (frame.operation != operation || frame.lent.empty()) continue;
    std::vector<std::byte> whole = fresh_buffer();
    whole.reserve(frame.size());
    whole.insert(whole.end(), frame.bytes.begin(), frame.bytes.end());
    whole.insert(whole.end(), frame.lent.begin(), frame.lent.end());
    frame.bytes = std::move(whole);
    frame.lent = {};
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
  give_back(operation);
}

bool LastingLink::has_sent(std::uint64_t operation) const {
  return std::none_of(kept_.begin() + static_cast<std::ptrdiff_t>(next_), kept_.end(),
                      [&](const Kept& frame) { return frame.operation == operation; });
}

void LastingLink::place(std::uint32_t kind, std::size_t prefix, net::FrameReader::FindPlace find) {
  placing_ = {.kind = kind, .prefix = prefix, .find = std::move(find)};
  if (connected()) socket_->reader().place(kind, prefix, placing_.find);
}

void LastingLink::share_evenly() {
  shares_ = true;
  if (connected()) socket_->share_evenly();
}

std::size_t LastingLink::give(const Kept& frame, std::size_t from) {
  const std::size_t of_bytes = std::min(from, frame.bytes.size());
  return socket_->give(std::span(frame.bytes).subspan(of_bytes), frame.lent.subspan(from - of_bytes));
}

void LastingLink::flush() {
  while (wants_to_send()) {
    if (!in_frame_ && !words_.empty()) {
      const std::size_t gone = socket_->give(words_);
      words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(gone));
      if (!words_.empty()) return;
      continue;
    }
    const Kept& frame = kept_[next_];
    sent_of_next_ += give(frame, sent_of_next_);
    in_frame_ = sent_of_next_ < frame.size();
    if (in_frame_) return;
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
    Kept& frame = kept_.front();
    const bool useful = frame.lent.empty() && frame.bytes.capacity() <= kLargestSpare;
    if (useful && spare_.size() < kMostSpare) spare_.push_back(std::move(frame.bytes));
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
  socket_->reader().place(placing_.kind, placing_.prefix, placing_.find);
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
