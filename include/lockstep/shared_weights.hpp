// Weights that all ranks of a host share, one copy for each memory node, and one optimizer state; updated by the
// reduction itself.
//
//   SharedWeights weights(engine, {{.name = "layer.weight", .elements = 1'000'000}}, {adam});
//   weights.load(values);                               // those of rank 0
//   for (...) {
//     backward(weights.weights(0), weights.gradient(0));  // leaves the gradient where all can read it
//     weights.update({.optimizers = {adam}});             // each rank reduces and updates its part
//   }
//
// p ranks keep W + S + pG bytes instead of p(W + S + G): weights, state, gradients. Where ranks are bound to the CPUs
// of several memory nodes (NUMA), as `lockstep run` does, each of c nodes has a copy of the weights, cW + S + pG in
// all, so that forward and backward read what is near. State is touched by the rank alone that updates it, and lies on
// its node. There is one copy where all ranks run on one node, or one of them may run on several.
//
// What a rank gets to see of weights and state is mapped read-only. A stray write is a fault; the process dies of it as
// it would of any other, but says first which tensor was written to.
//
// Whole after any death: an update either happens or does not. When ranks die in the middle of one, at whatever point
// and however many, `recover` leaves what was before the update or what is after it, the same for all survivors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/engine.hpp"
#include "lockstep/export.hpp"
#include "lockstep/optimizer.hpp"
#include "lockstep/types.hpp"

namespace lockstep {

/// A tensor that is to be shared. All ranks must give the same, in the same order.
struct SharedTensor {
  std::string name;          ///< for messages
  DType dtype = DType::f32;  ///< of weights and gradient: f16, bf16, f32 or f64; state is f32, or f64 with the last
  std::size_t elements = 0;
  std::size_t group = 0;  ///< which of the optimizers it belongs to
};

/// How to update once. Must be the same on all ranks, except for the gradients.
struct SharedUpdate {
  std::vector<OptimizerOptions> optimizers;  ///< one per group; each keeps the number of states it was made with
  /// The gradient of each tensor; nullptr: this rank has none, and is a skipped leaf. What does not lie in
  /// `gradients()` already is copied to `gradient(i)`. Empty: all do. A tensor for which no rank has a gradient stays
  /// as it is. After a failure what lies there must be left alone until `recover` has returned.
  std::vector<const void*> gradients = {};
  ReduceOp op = ReduceOp::average;  ///< or sum. An average divides by the number of ranks.
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Values to put into the place of a tensor's own. What is nullptr stays as it is.
struct SharedValues {
  const void* weights = nullptr;
  std::array<const void*, kMostOptimizerStates> state{};
  std::int64_t steps = -1;  ///< updates that the state has seen; -1: as it is
};

/// What `recover` has found.
struct Recovery {
  std::uint64_t updates = 0;   ///< how many the weights have seen: those before the failure, or one more
  bool load_was_torn = false;  ///< rank 0 died in `load`: weights and state are a mixture, and must be loaded again
};

/// Made, used and recovered by all ranks of the engine's world together. Threads: one call at a time. Errors: as those
/// of the engine; wrong arguments throw at the call, before anybody is told.
class LOCKSTEP_API SharedWeights {
 public:
  /// All values are zeros. Throws Error(invalid_argument) for ranks on several hosts, or what no optimizer can update;
  /// Error(mismatch), on all ranks, when they give different tensors; Error(system) when there is no memory for it.
  /// `engine` must live as long as it is used here.
  SharedWeights(Engine& engine, std::vector<SharedTensor> tensors, std::vector<OptimizerOptions> optimizers);

  /// Unmaps everything: what `weights`, `state` and `gradient` gave is gone.
  ~SharedWeights();

  SharedWeights(SharedWeights&&) noexcept;
  SharedWeights& operator=(SharedWeights&&) noexcept;

  std::size_t count() const noexcept;
  std::size_t copies() const noexcept;  ///< of the weights; this rank sees that of its memory node
  const void* weights(std::size_t tensor) const;
  std::size_t states(std::size_t tensor) const;
  const void* state(std::size_t tensor, std::size_t index) const;

  /// This rank's own place for the gradient. Must be left alone while `update` runs, and, when that has failed, until
  /// `recover` has returned. Its memory is taken at the first call: throws Error(system) when there is none.
  void* gradient(std::size_t tensor);

  /// This rank's part of the shared memory, which has those places in it, and room for gradients that are born there.
  std::span<const std::byte> gradients() const noexcept;

  /// From now on blocks of the sizes of the tensors that this process allocates are born in that room, two for each
  /// tensor at most, so that they need not be copied. Such a block stays valid until it is freed. False: they are not,
  /// because `lockstep run` has not preloaded its library, which rank 0 says on the log. `meant`: see
  /// Engine::serve_allocations. Each rank calls it or not, by itself.
  bool serve_gradients(int (*meant)() = nullptr);

  std::int64_t steps(std::size_t tensor) const;  ///< updates that had a gradient for it, and what `load` has told
  std::uint64_t updates() const noexcept;

  /// Puts in values from outside, those of rank 0. Unlike an update it is not whole after a death of rank 0.
  void load(const std::vector<SharedValues>& values);

  /// Reduces the gradients of all ranks and updates. On return it is done, everywhere. Throws Error(mismatch) on all
  /// ranks, with nothing changed, when they want different updates. Throws Error(peer_lost) when a rank is lost: then
  /// it is open whether the update has happened, until `recover`.
  void update(const SharedUpdate& update);

  /// After a failure, called by every survivor: completes the update that was under way, or finds that it has not
  /// begun, and goes on with `next`, which is what `Engine::continue_with_survivors` gave. Throws Error(peer_lost) when
  /// a rank dies meanwhile: continue with the survivors of `next`, and call it again. Ranks that were left behind but
  /// are still there and hold such an object, such as one that is stopped, are killed: they could write into what the
  /// others go on with.
  Recovery recover(Engine& next);

  /// Of weights, state and steps: the same on all ranks, or something is wrong.
  std::uint64_t hash() const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
