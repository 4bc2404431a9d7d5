#include "transport/tcp/lasting_link.hpp"

#include "transport/tcp/wire.hpp"

namespace lockstep::transport::tcp {
namespace {

// The peer is told of what has arrived after so many bytes or frames, whichever comes first.
constexpr std::size_t kConfirmBytes = 1 << 20;
constexpr std::uint64_t kConfirmFrames = 128;

constexpr std::size_t kMostSpare = 8;  // buffers
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

void LastingLink::send(std::span<const std::byte> head, std::span<const std::byte> body) {
  std::vector<std::byte> frame = fresh_buffer();
  frame.reserve(head.size() + body.size());
  frame.insert(frame.end(), head.begin(), head.end());
  frame.insert(frame.end(), body.begin(), body.end());
  kept_.push_back(std::move(frame));
  flush();
}

void LastingLink::flush() {
  while (wants_to_send()) {
    if (!in_frame_ && !words_.empty()) {
      const std::size_t gone = socket_->give(words_);
      words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(gone));
      if (!words_.empty()) return;
      continue;
    }
    const std::span<const std::byte> rest = std::span(kept_[next_]).subspan(sent_of_next_);
    const std::size_t gone = socket_->give(rest);
    sent_of_next_ += gone;
    in_frame_ = gone < rest.size();
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
    received_on_socket_ += frame->payload.size();
    confirm_if_due(frame->payload.size());
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
    if (spare_.size() < kMostSpare && kept_.front().capacity() <= kLargestSpare)
      spare_.push_back(std::move(kept_.front()));
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
