// Chunks of one message after the other, from one rank, in a few places that are used in turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/spare_memory.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

class Arrivals {
 public:
  struct Chunks {
    int rank = 0;
    std::uint64_t operation = 0;
    std::uint32_t count = 0;
    std::size_t most_bytes = 0;                              ///< of a chunk
    std::function<std::uint32_t(std::uint32_t chunk)> part;  ///< of its message
    std::function<std::size_t(std::uint32_t chunk)> bytes;
  };

  /// At most `window` chunks have a place at a time.
  Arrivals(transport::Messages& messages, Chunks chunks, std::uint32_t window)
      : messages_(messages),
        chunks_(std::move(chunks)),
        window_(std::clamp(chunks_.count, 1U, window)),
        memory_(window_ * chunks_.most_bytes) {
    for (std::uint32_t chunk = 0; chunk < std::min(window_, chunks_.count); ++chunk) expect(chunk);
  }

  /// Takes what has come. True when there was something.
  bool take() {
    const std::uint32_t before = arrived_;
    const std::uint32_t end = std::min(chunks_.count, used_ + window_);
    while (arrived_ < end && messages_.receive(chunks_.rank, chunks_.operation, chunks_.part(arrived_), at(arrived_)))
      ++arrived_;
    return arrived_ != before;
  }

  std::uint32_t arrived() const { return arrived_; }

  /// REQUIRES the chunk has arrived and is not yet used.
  std::span<std::byte> at(std::uint32_t chunk) const {
    return {memory_.data() + chunk % window_ * chunks_.most_bytes, chunks_.bytes(chunk)};
  }

  /// The next chunk is not needed any more: its place is free for a later one.
  void use_up() {
    const std::uint32_t next = used_++ + window_;
    if (next < chunks_.count) expect(next);
  }

 private:
  void expect(std::uint32_t chunk) {
    messages_.expect(chunks_.rank, chunks_.operation, chunks_.part(chunk), at(chunk));
  }

  transport::Messages& messages_;
  Chunks chunks_;
  std::uint32_t window_;
  SpareMemory memory_;
  std::uint32_t arrived_ = 0;
  std::uint32_t used_ = 0;
};

}  // namespace lockstep::collective
