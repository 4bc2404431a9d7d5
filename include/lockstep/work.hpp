// The handle of an asynchronous operation, and its result.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/export.hpp"
#include "lockstep/types.hpp"

namespace lockstep {

namespace engine {
class Operation;
class Core;
}  // namespace engine

/// What an operation gave. `tensor` lies in the caller's output, or, where the caller gave none, in memory that this
/// object and its copies keep alive.
struct Result {
  TensorView tensor;
  /// All-to-all: rows that came from each rank of the group.
  std::vector<std::int64_t> received = {};
  /// Join: the last rank that joined, the same everywhere.
  int last_joined = -1;
  std::shared_ptr<const void> memory = {};
};

/// Cheap to copy; all copies stand for the same operation, or the same group of operations. Dropping every copy does
/// not cancel it. Thread-safe. May outlive the engine: an operation that the engine's stop cut short ends with an
/// error.
class LOCKSTEP_API Work {
 public:
  Work() = default;
  Work(std::shared_ptr<engine::Operation> operation, std::shared_ptr<engine::Core> core);
  Work(std::vector<std::shared_ptr<engine::Operation>> operations, std::shared_ptr<engine::Core> core);

  bool valid() const noexcept { return core_ != nullptr; }

  /// True once the result is in place or the operation has failed. Never blocks.
  bool poll() const;

  /// Blocks until the result is in place; throws the operation's Error. The waiting thread does part of the work.
  void wait() const;

  /// As `wait`, but gives up after `limit` and returns false; the operation goes on. Does not throw the operation's
  /// Error.
  bool wait_for(std::chrono::milliseconds limit) const;

  /// A slice of a wait without limit: as `wait_for`, for a caller that does nothing between two slices but to look
  /// whether it was interrupted, and waits on until this is true. So it counts as waiting, where `wait_for` may be
  /// followed by anything, when it is to be known whether all ranks wait for each other for ever.
  bool wait_slice(std::chrono::milliseconds limit) const;

  /// Waits, and gives the result: of operation `index`, in the order of submission, when several were submitted
  /// together.
  Result result(std::size_t index = 0) const;

  /// How many operations it stands for.
  std::size_t size() const noexcept { return (first_ ? 1 : 0) + others_.size(); }

  /// The Error that `wait` would throw, without throwing it: of the first operation that has failed, or of operation
  /// `index`. Null when none has, and before the end. Never blocks.
  std::exception_ptr exception() const;
  std::exception_ptr exception(std::size_t index) const;

 private:
  const std::shared_ptr<engine::Operation>& at(std::size_t index) const;
  bool wait_until(std::chrono::milliseconds limit, bool in_slices) const;

  std::shared_ptr<engine::Operation> first_;  // by itself: most handles stand for one operation
  std::vector<std::shared_ptr<engine::Operation>> others_;
  std::shared_ptr<engine::Core> core_;
};

}  // namespace lockstep
