#include "collective/adasum_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"

namespace lockstep::collective {
namespace {

// Independent sums that the compiler may keep in one vector register, whatever its width.
constexpr std::size_t kLanes = 8;

// A norm that is smaller than this part of what cancelled out to make it is rounding, not length.
constexpr double kCancelled = 1e-14;

template <class T, class Convert>
void widen(const std::byte* from, std::size_t elements, double* to, const Convert& convert) {
  const auto* values = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < elements; ++i) to[i] = convert(values[i]);
}

void widen(DType dtype, const std::byte* from, std::size_t elements, double* to) {
  switch (dtype) {
    case DType::f16:
      return widen<std::uint16_t>(from, elements, to, [](std::uint16_t v) { return double{f32_from_f16(v)}; });
    case DType::bf16:
      return widen<std::uint16_t>(from, elements, to, [](std::uint16_t v) { return double{f32_from_bf16(v)}; });
    case DType::f32:
      return widen<float>(from, elements, to, [](float v) { return double{v}; });
    default:
      return widen<double>(from, elements, to, [](double v) { return v; });
  }
}

void narrow(DType dtype, const double* from, std::size_t elements, std::byte* to) {
  for (std::size_t i = 0; i < elements; ++i) {
    switch (dtype) {
      case DType::f16:
        reinterpret_cast<std::uint16_t*>(to)[i] = f16_from_f32(static_cast<float>(from[i]));
        break;
      case DType::bf16:
        reinterpret_cast<std::uint16_t*>(to)[i] = bf16_from_f32(static_cast<float>(from[i]));
        break;
      case DType::f32:
        reinterpret_cast<float*>(to)[i] = static_cast<float>(from[i]);
        break;
      default:
        reinterpret_cast<double*>(to)[i] = from[i];
    }
  }
}

double dot(const double* a, const double* b, std::size_t elements) {
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t lane = 0; i + lane < elements; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  return *reduce_tree(
      0, kLanes, [&](std::size_t lane) { return std::optional(lanes[lane]); },
      [](double left, double right) { return left + right; });
}

// The dot product of two linear combinations of the leaves, and how large its terms were.
struct Product {
  double value = 0.0;
  double terms = 0.0;
};

Product product(const Gram& gram, const std::vector<double>& a, const std::vector<double>& b) {
  Product result;
  const std::size_t n = a.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (a[i] == 0.0 || b[j] == 0.0) continue;  // not of this subtree
      const std::size_t low = std::min(i, j), high = std::max(i, j);
      const double term = a[i] * b[j] * gram[low * n - low * (low + 1) / 2 + high];
      result.value += term;
      result.terms += term < 0 ? -term : term;
    }
  }
  return result;
}

// A vector without length has no direction to correct for.
double factor(const Product& norm, double dot_product) {
  return norm.value <= norm.terms * kCancelled ? 1.0 : 1.0 - dot_product / (2.0 * norm.value);
}

}  // namespace

Gram gram_of_block(DType dtype, std::span<const std::byte* const> leaves, std::size_t elements) {
  const std::size_t n = leaves.size();
  std::vector<double> wide(n * kAdasumBlock);
  for (std::size_t i = 0; i < n; ++i) widen(dtype, leaves[i], elements, wide.data() + i * kAdasumBlock);
  Gram gram;
  gram.reserve(gram_size(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i; j < n; ++j) {
      gram.push_back(dot(wide.data() + i * kAdasumBlock, wide.data() + j * kAdasumBlock, elements));
    }
  }
  return gram;
}

std::vector<double> adasum_factors(const Gram& gram, std::size_t leaves, std::span<const std::size_t> numbers,
                                   std::size_t total) {
  using Factors = std::vector<double>;
  auto leaf = [&](std::size_t number) -> std::optional<Factors> {
    std::size_t index = number;
    if (!numbers.empty()) {
      const auto found = std::lower_bound(numbers.begin(), numbers.end(), number);
      if (found == numbers.end() || *found != number) return std::nullopt;
      index = static_cast<std::size_t>(found - numbers.begin());
    }
    Factors unit(leaves, 0.0);
    unit[index] = 1.0;
    return unit;
  };
  auto join = [&](const Factors& a, const Factors& b) {
    const double across = product(gram, a, b).value;
    const double of_a = factor(product(gram, a, a), across), of_b = factor(product(gram, b, b), across);
    Factors joined(leaves);
    for (std::size_t i = 0; i < leaves; ++i) joined[i] = of_a * a[i] + of_b * b[i];
    return joined;
  };
  return *reduce_tree(0, numbers.empty() ? leaves : total, leaf, join);
}

void combine(DType dtype, std::span<const std::byte* const> leaves, std::span<const double> factors, std::byte* output,
             std::size_t elements) {
  double wide[kAdasumBlock], sum[kAdasumBlock];
  for (std::size_t start = 0; start < elements; start += kAdasumBlock) {
    const std::size_t count = std::min(kAdasumBlock, elements - start), at = start * size_of(dtype);
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      widen(dtype, leaves[leaf] + at, count, wide);
      for (std::size_t i = 0; i < count; ++i) sum[i] = (leaf == 0 ? 0.0 : sum[i]) + factors[leaf] * wide[i];
    }
    narrow(dtype, sum, count, output + at);
  }
}

}  // namespace lockstep::collective
