// Blocks of the heap that a program keeps, also beyond the engine.
//
// A block begins with a line of its own in which its users are counted. Each rank lets go of it once; only the owner,
// whose books are private, can give it back to the arena. Where others still use it then, it waits among those that are
// lent, and the owner looks after them when it makes the next one.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/transport.hpp"

namespace lockstep::engine {

class Core;

struct BlockHead {
  std::atomic<std::uint32_t> users;
};
inline constexpr std::size_t kBlockHeadBytes = 128;

/// Blocks that their owner has let go of and others have not. Thread-safe.
class LentBlocks {
 public:
  void add(BlockHead* block);
  /// Gives back those that nobody uses any more.
  void reclaim(transport::SharedMemory& shared);

 private:
  std::mutex mutex_;
  std::vector<BlockHead*> blocks_;  // protected by mutex_
};

class SharedBlock {
 public:
  /// nullptr when there is no room. Throws Error(unavailable) where ranks share no memory.
  static std::shared_ptr<SharedBlock> make(const std::shared_ptr<Core>& core, std::size_t bytes, std::uint32_t users);
  static std::shared_ptr<SharedBlock> open(const std::shared_ptr<Core>& core, int owner, transport::Place place);

  SharedBlock(std::shared_ptr<Core> core, BlockHead* head, transport::Place place, bool owned);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(head_) + kBlockHeadBytes; }
  transport::Place place() const { return place_; }

 private:
  std::shared_ptr<Core> core_;  // keeps the memory mapped, also when it has been stopped
  BlockHead* head_;
  transport::Place place_;
  bool owned_;
  pid_t process_;  // a forked child's copy does not count
};

}  // namespace lockstep::engine
