// The arithmetic of Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021). Pure.
//
// Two vectors a and b are joined to  (1 - a.b / 2|a|^2) a  +  (1 - a.b / 2|b|^2) b :  their sum where they are
// orthogonal, their average where they are parallel. More are joined along the fixed tree. Every node is a linear
// combination of the leaves, so all that has to be known of whole tensors are the dot products of the leaves, their
// Gram matrix. One pass measures it and one pass combines, for any number of leaves.
//
// Dots are summed in f64 in blocks of a fixed size, and blocks along the fixed tree: the bits do not depend on who
// measures which part.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/types.hpp"

namespace lockstep::collective {

inline constexpr std::size_t kAdasumBlock = 1024;  // elements

/// The upper triangle of a Gram matrix, row by row.
using Gram = std::vector<double>;
constexpr std::size_t gram_size(std::size_t leaves) { return leaves * (leaves + 1) / 2; }

/// Of one block. REQUIRES: elements <= kAdasumBlock; the type is a real float.
Gram gram_of_block(DType dtype, std::span<const std::byte* const> leaves, std::size_t elements);

/// By how much each leaf is multiplied. `numbers` and `total` as in Reduction.
std::vector<double> adasum_factors(const Gram& gram, std::size_t leaves, std::span<const std::size_t> numbers,
                                   std::size_t total);

/// The linear combination, in f64, rounded once.
void combine(DType dtype, std::span<const std::byte* const> leaves, std::span<const double> factors, std::byte* output,
             std::size_t elements);

}  // namespace lockstep::collective
