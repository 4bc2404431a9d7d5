// Memory that the ranks of a host share and that a program may keep: it outlives the engine which made it.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/export.hpp"

namespace lockstep {

namespace engine {
class SharedBlock;
}

/// A handle of such memory. Copies are the same handle, and the memory is let go with the last of them. Where it has
/// several users, it stays until all have let it go: the owner's heap gets it back when the owner next makes a block.
class LOCKSTEP_API Block {
 public:
  Block() = default;
  explicit Block(std::shared_ptr<engine::SharedBlock> block) : block_(std::move(block)) {}

  bool valid() const noexcept { return block_ != nullptr; }

  /// 128-byte aligned; not cleared. REQUIRES: valid().
  void* data() const noexcept;

  /// What the other users open it by.
  std::uint64_t place() const noexcept;

 private:
  std::shared_ptr<engine::SharedBlock> block_;
};

}  // namespace lockstep
