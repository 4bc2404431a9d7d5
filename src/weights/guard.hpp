// Says which tensor it was when a process dies of a write into shared weights.
//
// They are mapped read-only, so such a write is a SIGSEGV. The handler looks up the address, writes one sentence to
// standard error, and then lets happen what would have happened without it: the handler that was there before, or
// death.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::weights {

/// A tensor, or a part of its state.
struct GuardedRange {
  const std::byte* first = nullptr;
  std::size_t bytes = 0;
  std::string text;  ///< what the process says before it dies, with the end of the line
};

class GuardList;

/// Watches over the ranges as long as it lives. They do not overlap. Installs the handler of the process
/// when the first is made; it stays.
class Guard {
 public:
  explicit Guard(std::vector<GuardedRange> ranges);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  std::unique_ptr<GuardList> list_;
  std::size_t slot_ = 0;
};

}  // namespace lockstep::weights
