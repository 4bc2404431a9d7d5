// What a reduction can do to its result before anybody gets it: the seam for fused optimizers.
//
// Each element of the result is computed by exactly one rank. That rank hands it to its epilogue, which may change it;
// what the epilogue leaves goes to all outputs. So with gradients as input, weights as output and an epilogue that
// updates, an all-reduce is a training step's exchange and update in one, of which each rank does its part.
#pragma once

#include <cstddef>
#include <functional>

#include "lockstep/export.hpp"
#include "lockstep/types.hpp"

namespace lockstep {

/// A part of the result, in the hands of the rank that computed it.
struct ReducedSlice {
  std::size_t offset = 0;  ///< of its first element in the tensor, in elements, in memory order
  std::size_t count = 0;
  void* values = nullptr;  ///< the reduced elements, of the result's type; what is here on return goes to all outputs
  std::size_t tensor = 0;  ///< several at once: which of them, in the order of submission
};

/// Called several times per operation, on one thread at a time, with slices that follow each other. A caller may rely
/// on this:
/// - In all ranks together each element comes exactly once. In an all-reduce and a reduce a rank gets the elements of
/// its
///   `owned_slice`, always, so that it may keep state for those alone; in a reduce-scatter, its rows. Slices of the
///   first two begin at multiples of 128 bytes.
/// - The values have the bits that the result would have without an epilogue.
/// - This rank's output still holds, at these elements, what it held when the operation was submitted.
/// It runs on whichever thread drives the engine, with the engine locked: it must be quick, and must not call the
/// engine nor wait for a thread that does. All ranks must give one, or none. If it throws, the job is aborted: the
/// tensor is then changed in part, and every rank gets Error(aborted) with the exception's text.
using Epilogue = std::function<void(const ReducedSlice&)>;

struct ElementRange {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// What the rank at place `index` of `ranks` that take part (those of the group that have not joined) owns of a tensor
/// of that many elements.
LOCKSTEP_API ElementRange owned_slice(std::size_t elements, DType result, std::size_t index, std::size_t ranks);

}  // namespace lockstep
