// Memory for what arrives, which is used again and again: fresh pages cost more than what is received into them.
#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::collective {

/// A block that goes back to the process's spare ones. What it holds at first is undefined.
class SpareMemory {
 public:
  explicit SpareMemory(std::size_t bytes);
  ~SpareMemory();
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  std::byte* data() const { return block_.get(); }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> block_;
};

}  // namespace lockstep::collective
