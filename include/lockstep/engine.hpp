// The engine: one rank's part in a world of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/export.hpp"
#include "lockstep/options.hpp"
#include "lockstep/types.hpp"
#include "lockstep/work.hpp"

namespace lockstep {

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
};

/// An object, not a global: a process may hold several, and start and stop them as often as it likes.
///
/// Threads: every method may be called from any thread, except that the destructor must not race with other calls.
/// Matching: an operation with a name meets the operation of that name on the other ranks, whatever order each rank
/// submits in; the n-th use of a name meets the n-th use. Operations without a name meet in the order of submission.
/// Errors: wrong arguments throw at the call. Ranks that disagree about an operation all get Error(mismatch) from it.
/// When a peer dies, every pending and later operation on this engine throws Error(peer_lost) that names the rank.
class LOCKSTEP_API Engine {
 public:
  /// Starts with `Options::from_environment()`.
  Engine();

  /// Blocks until all ranks have arrived; throws Error(unavailable) that names the missing ranks.
  explicit Engine(const Options& options);

  /// Leaves the world. Peers that still wait for this rank get Error(peer_lost).
  ~Engine();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  int local_rank() const noexcept;
  int local_size() const noexcept;

  /// The result is the fixed tree over ranks (src/base/reduction_tree.hpp): the same bits on every rank, however the
  /// data was cut or moved. In place when `input.data == output.data`; otherwise they must not overlap.
  void all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});
  Work all_reduce_async(const TensorView& input, const TensorView& output, const ReduceOptions& options = {});

  /// Copies `root`'s tensor to all ranks, in place.
  void broadcast(const TensorView& tensor, int root);
  Work broadcast_async(const TensorView& tensor, int root);

  /// Returns when every rank has called it.
  void barrier(const std::string& name = {});
  Work barrier_async(const std::string& name = {});

  /// Brackets one training step. `end_step` waits for the operations submitted since `begin_step` and returns the
  /// number of steps completed.
  void begin_step();
  std::uint64_t end_step();

  /// Ends the world for everybody: each rank's pending and later operations throw Error(aborted) with this reason.
  void abort(const std::string& reason);

  /// Memory that all ranks of this host can read and write: tensors that live here are reduced where they are.
  /// 64-byte aligned. Returns nullptr when the heap is full or absent. Free it before the engine goes.
  void* allocate(std::size_t bytes);
  void deallocate(void* block);

 private:
  std::shared_ptr<engine::Core> core_;
};

}  // namespace lockstep
