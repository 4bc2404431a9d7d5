// Small tensors of one call that travel as one, so that a model of hundreds of them takes the messages of a few.
//
// Each rank must still own the `owned_slice` of every tensor, because its epilogue may keep state for that alone. So
// the pack is ordered by owner: first what the first rank owns of all tensors, then what the second owns, and so on.
// Every part begins at a multiple of 128 bytes, as slices do.
#pragma once

#include <cstddef>
#include <vector>

#include "base/spare_memory.hpp"
#include "collective/call.hpp"

namespace lockstep::collective {

struct Pack {
  struct Tensor {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::size_t elements = 0;
    Epilogue epilogue = {};
  };

  Pack(std::vector<Tensor> contents, DType type);

  std::vector<Tensor> tensors;
  DType dtype;           ///< of inputs and outputs
  std::size_t elements;  ///< with what lies between the parts
  SpareMemory memory;    ///< for them: gradients go in, what the epilogue has left comes out
};

}  // namespace lockstep::collective
