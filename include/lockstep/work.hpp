// The handle of an asynchronous operation.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/export.hpp"

namespace lockstep {

namespace engine {
class Operation;
class Core;
}  // namespace engine

/// Cheap to copy; all copies stand for the same operation. Dropping every copy does not cancel it.
/// Thread-safe. May outlive the engine: an operation that the engine's stop cut short ends with an error.
class LOCKSTEP_API Work {
 public:
  Work() = default;
  Work(std::shared_ptr<engine::Operation> operation, std::shared_ptr<engine::Core> core);

  bool valid() const noexcept { return operation_ != nullptr; }

  /// True once the result is in place or the operation has failed. Never blocks.
  bool poll() const;

  /// Blocks until the result is in place; throws the operation's Error. The waiting thread does part of the work.
  void wait() const;

  /// As `wait`, but gives up after `limit` and returns false; the operation goes on.
  bool wait_for(std::chrono::milliseconds limit) const;

 private:
  std::shared_ptr<engine::Operation> operation_;
  std::shared_ptr<engine::Core> core_;
};

}  // namespace lockstep
