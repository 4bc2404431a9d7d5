// Memory for what passes through, which is used again and again: fresh pages cost more than what is put into them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace lockstep {

/// A block that goes back to the process's spare ones. What it holds at first is undefined.
class SpareMemory {
 public:
  SpareMemory() = default;
  explicit SpareMemory(std::size_t bytes);
  ~SpareMemory() { give_back(); }
  SpareMemory(SpareMemory&& other) noexcept { swap(other); }
  SpareMemory& operator=(SpareMemory&& other) noexcept {
    SpareMemory taken(std::move(other));
    swap(taken);
    return *this;
  }

  std::byte* data() const { return block_.get(); }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data(), bytes_}; }

 private:
  void give_back();
  void swap(SpareMemory& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
  }

  std::unique_ptr<std::byte[]> block_;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;  // of the block, at least as much
};

}  // namespace lockstep
