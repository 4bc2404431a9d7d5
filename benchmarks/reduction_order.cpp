// What the fixed order of summation costs: the engine's kernel, which adds in the order of the tree, against plain
// loops that add in whatever order is fastest, over tensors that stay in the cache. Prints a line for each number of
// leaves: the number, the ratio of times (median of the rounds) and the interval that holds the true median with 95 %.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "collective/reduce_kernel.hpp"

namespace {

constexpr std::size_t kElements = 8192;
constexpr int kRounds = 101;
constexpr int kCalls = 200;  // in a turn: a few tenths of a millisecond

using Leaves = std::array<const float*, 8>;

// One after the other.
template <std::size_t Count>
__attribute__((target("avx2"))) void chain(const Leaves& given, float* output) {
  const Leaves leaves = given;  // stays in registers, whatever is written
  for (std::size_t i = 0; i < kElements; i += 8) {
    __m256 sum = _mm256_loadu_ps(leaves[0] + i);
#pragma GCC unroll 8
    for (std::size_t leaf = 1; leaf < Count; ++leaf) sum = _mm256_add_ps(sum, _mm256_loadu_ps(leaves[leaf] + i));
    _mm256_storeu_ps(output + i, sum);
  }
}

// Two sums side by side, which depend less on each other.
template <std::size_t Count>
__attribute__((target("avx2"))) void two_chains(const Leaves& given, float* output) {
  const Leaves leaves = given;
  for (std::size_t i = 0; i < kElements; i += 8) {
    __m256 even = _mm256_loadu_ps(leaves[0] + i), odd = _mm256_loadu_ps(leaves[1] + i);
#pragma GCC unroll 8
    for (std::size_t leaf = 2; leaf < Count; leaf += 2) {
      even = _mm256_add_ps(even, _mm256_loadu_ps(leaves[leaf] + i));
      if (leaf + 1 < Count) odd = _mm256_add_ps(odd, _mm256_loadu_ps(leaves[leaf + 1] + i));
    }
    _mm256_storeu_ps(output + i, _mm256_add_ps(even, odd));
  }
}

template <std::size_t Count>
void tree(const Leaves& leaves, float* output) {
  std::array<const std::byte*, Count> inputs;
  for (std::size_t i = 0; i < Count; ++i) inputs[i] = reinterpret_cast<const std::byte*>(leaves[i]);
  auto* target = reinterpret_cast<std::byte*>(output);
  lockstep::collective::reduce({.leaves = inputs, .outputs = {&target, 1}, .elements = kElements});
}

template <class Kernel>
double time_of(const Kernel& kernel, const Leaves& leaves, float* output) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    kernel(leaves, output);
    asm volatile("" : : "r"(output) : "memory");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <std::size_t Count>
void measure(const Leaves& leaves, float* output) {
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    const double before = time_of(tree<Count>, leaves, output);
    const double others = std::min(time_of(chain<Count>, leaves, output), time_of(two_chains<Count>, leaves, output));
    const double after = time_of(tree<Count>, leaves, output);
    ratios.push_back((before + after) / 2 / others);
  }
  std::sort(ratios.begin(), ratios.end());
  constexpr int kHalfWidth = 10;  // of 101 ranks around the median: 95 %
  std::printf("%zu %.4f %.4f %.4f\n", Count, ratios[kRounds / 2], ratios[kRounds / 2 - kHalfWidth],
              ratios[kRounds / 2 + kHalfWidth]);
}

}  // namespace

int main() {
  if (!__builtin_cpu_supports("avx2")) {
    std::fprintf(stderr, "reduction_order: this processor has no AVX2, for which the loops are written\n");
    return 1;
  }
  Leaves leaves{};
  // At the beginning of a line, as blocks of the heap and PyTorch's tensors are; and two lines apart, so that no two
  // lie at the same place of their pages.
  alignas(64) static std::array<float, 9 * (kElements + 32)> memory;
  memory.fill(1.0F);
  for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = memory.data() + i * (kElements + 32);
  float* output = memory.data() + 8 * (kElements + 32);
  measure<2>(leaves, output);
  measure<3>(leaves, output);
  measure<4>(leaves, output);
  measure<5>(leaves, output);
  measure<8>(leaves, output);
}
