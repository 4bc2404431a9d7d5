// Two paths. The fast one covers sums and averages of leaves that are all present: the tree is unrolled and stays in
// registers, up to eight leaves; of more, subtrees of at most eight are added up tile by tile. The general one covers
// everything else tile by tile, and leaves vectors to the compiler.
// This file is compiled once per instruction set (foreach_target) and the best is chosen at run time.
#include "collective/reduce_kernel.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <cstring>
#include <type_traits>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"
#include "lockstep/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collective/reduce_kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::collective::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kMaxUnrolled = 8;

// --- how each element type is loaded into lanes and stored again

template <class T>
struct PlainLanes {
  using D = hn::ScalableTag<T>;
  using Element = T;
  static HWY_INLINE HWY_ATTR auto load(const T* from) { return hn::LoadU(D(), from); }
  template <class V>
  static HWY_INLINE HWY_ATTR void store(V value, T* to) {
    hn::StoreU(value, D(), to);
  }
};

// A word holds two numbers of type bf16. Either becomes an f32 by one operation that leaves the other out, so they are
// never shuffled.
struct Bf16Low {
  using D = hn::ScalableTag<float>;
  using Element = std::uint32_t;
  static HWY_INLINE HWY_ATTR auto load(const std::uint32_t* from) {
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::LoadU(hn::RebindToUnsigned<D>(), from)));
  }
};
struct Bf16High {
  using D = hn::ScalableTag<float>;
  using Element = std::uint32_t;
  static HWY_INLINE HWY_ATTR auto load(const std::uint32_t* from) {
    const hn::RebindToUnsigned<D> words;
    return hn::BitCast(D(), hn::And(hn::LoadU(words, from), hn::Set(words, 0xFFFF0000U)));
  }
};

#if HWY_TARGET != HWY_SCALAR  // which has no lanes of another width
// Both kinds back into words, to the nearest bf16, ties to even, all in lanes of 16 bits: the upper halves are what is
// kept, the lower ones decide. The average of two lanes does not overflow, so its highest bit is the carry.
//
// A NaN needs no care: in a sum of numbers that were bf16 its lower half is zero, which rounds to nothing.
template <class V>
HWY_INLINE HWY_ATTR auto rounded_to_bf16(V low, V high) {
  const hn::RebindToUnsigned<hn::DFromV<V>> words;
  const hn::Repartition<std::uint16_t, decltype(words)> halves;
  const auto low_bits = hn::BitCast(words, low), high_bits = hn::BitCast(words, high);
  const auto kept = hn::OddEven(hn::BitCast(halves, high_bits), hn::BitCast(halves, hn::ShiftRight<16>(low_bits)));
  const auto dropped = hn::OddEven(hn::BitCast(halves, hn::ShiftLeft<16>(high_bits)), hn::BitCast(halves, low_bits));
  const auto odd = hn::And(kept, hn::Set(halves, 1));
  const auto carry = hn::ShiftRight<15>(hn::AverageRound(dropped, hn::Or(odd, hn::Set(halves, 0x7FFE))));
  return hn::BitCast(words, hn::Add(kept, carry));
}
#endif

struct F16Lanes {
  using D = hn::ScalableTag<float>;
  using Element = std::uint16_t;
  static HWY_INLINE HWY_ATTR auto load(const std::uint16_t* from) {
    const hn::Rebind<hwy::float16_t, D> narrow;
    const hn::RebindToUnsigned<decltype(narrow)> bits;
    return hn::PromoteTo(D(), hn::BitCast(narrow, hn::LoadU(bits, from)));
  }
  template <class V>
  static HWY_INLINE HWY_ATTR void store(V value, std::uint16_t* to) {
    const hn::Rebind<hwy::float16_t, D> narrow;
    const hn::RebindToUnsigned<decltype(narrow)> bits;
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(narrow, value)), bits, to);
  }
};

// --- the fast path

template <class Lanes, std::size_t First, std::size_t Count>
HWY_INLINE HWY_ATTR auto tree_sum(const typename Lanes::Element* const* leaves, std::size_t i) {
  if constexpr (Count == 1) {
    return Lanes::load(leaves[First] + i);
  } else {
    constexpr std::size_t kLeft = left_leaves(Count);
    return hn::Add(tree_sum<Lanes, First, kLeft>(leaves, i), tree_sum<Lanes, First + kLeft, Count - kLeft>(leaves, i));
  }
}

template <class T, std::size_t First, std::size_t Count>
HWY_INLINE T scalar_tree_sum(const T* const* leaves, std::size_t i) {
  if constexpr (Count == 1) {
    return leaves[First][i];
  } else {
    constexpr std::size_t kLeft = left_leaves(Count);
    return scalar_tree_sum<T, First, kLeft>(leaves, i) + scalar_tree_sum<T, First + kLeft, Count - kLeft>(leaves, i);
  }
}

// With the number of outputs known: the pointers stay in registers, whatever is written through them.
template <class T, std::size_t Outputs, class Value, class Store>
HWY_INLINE HWY_ATTR void write_to(const Reduction& reduction, std::size_t end, std::size_t step, const Value& value,
                                  const Store& store) {
  std::array<T*, Outputs> outputs;
  for (std::size_t o = 0; o < Outputs; ++o) outputs[o] = reinterpret_cast<T*>(reduction.outputs[o]);
#pragma GCC unroll 2
  for (std::size_t i = 0; i < end; i += step) {
    const auto result = value(i);
    for (std::size_t o = 0; o < Outputs; ++o) store(result, outputs[o] + i);
  }
}

template <class T, std::size_t Leaves, class Value, class Store>
HWY_INLINE HWY_ATTR void write_all(const Reduction& reduction, std::size_t end, std::size_t step, const Value& value,
                                   const Store& store) {
  const std::size_t outputs = reduction.outputs.size();
  if (outputs == Leaves) return write_to<T, Leaves>(reduction, end, step, value, store);  // an all-reduce
  if (outputs == 1) return write_to<T, 1>(reduction, end, step, value, store);
  if (outputs == 2) return write_to<T, 2>(reduction, end, step, value, store);  // one through a relay
  for (std::size_t i = 0; i < end; i += step) {
    const auto result = value(i);
    for (std::byte* output : reduction.outputs) store(result, reinterpret_cast<T*>(output) + i);
  }
}

template <class Lanes, std::size_t Count, bool kDivide>
HWY_ATTR std::size_t sum_unrolled(const Reduction& reduction) {
  using T = typename Lanes::Element;
  const typename Lanes::D d;
  std::array<const T*, Count> leaves;
  for (std::size_t i = 0; i < Count; ++i) leaves[i] = reinterpret_cast<const T*>(reduction.leaves[i]);
  const std::size_t step = hn::Lanes(d);
  const std::size_t end = reduction.elements / step * step;
  const auto divisor = hn::Set(d, static_cast<hn::TFromD<typename Lanes::D>>(reduction.divisor));
  auto value = [&](std::size_t i) HWY_ATTR {
    auto sum = tree_sum<Lanes, 0, Count>(leaves.data(), i);
    if constexpr (kDivide) sum = hn::Div(sum, divisor);
    return sum;
  };
  write_all<T, Count>(reduction, end, step, value, [](auto sum, T* to) HWY_ATTR { Lanes::store(sum, to); });
  if constexpr (std::is_floating_point_v<T>) {  // a loss, a flag: too short for lanes, and too frequent for the long
                                                // way
    for (std::size_t i = end; i < reduction.elements; ++i) {
      T sum = scalar_tree_sum<T, 0, Count>(leaves.data(), i);
      if constexpr (kDivide) sum /= static_cast<T>(reduction.divisor);
      for (std::byte* output : reduction.outputs) reinterpret_cast<T*>(output)[i] = sum;
    }
    return reduction.elements;
  }
  return end;
}

#if HWY_TARGET != HWY_SCALAR
template <std::size_t Count, bool kDivide>
HWY_ATTR std::size_t sum_bf16_unrolled(const Reduction& reduction) {
  const Bf16Low::D d;
  std::array<const std::uint32_t*, Count> leaves;
  for (std::size_t i = 0; i < Count; ++i) leaves[i] = reinterpret_cast<const std::uint32_t*>(reduction.leaves[i]);
  const std::size_t step = hn::Lanes(d);
  const std::size_t end = reduction.elements / (2 * step) * step;
  const auto divisor = hn::Set(d, static_cast<float>(reduction.divisor));
  auto value = [&](std::size_t i) HWY_ATTR {
    auto low = tree_sum<Bf16Low, 0, Count>(leaves.data(), i);
    auto high = tree_sum<Bf16High, 0, Count>(leaves.data(), i);
    if constexpr (kDivide) {
      low = hn::Div(low, divisor);
      high = hn::Div(high, divisor);
    }
    return rounded_to_bf16(low, high);
  };
  write_all<std::uint32_t, Count>(reduction, end, step, value, [](auto result, std::uint32_t* to) HWY_ATTR {
    hn::StoreU(result, hn::RebindToUnsigned<Bf16Low::D>(), to);
  });
  return 2 * end;
}
#endif

template <class Lanes>
struct Unrolled {
  template <std::size_t Count, bool kDivide>
  static HWY_ATTR std::size_t sum(const Reduction& reduction) {
    return sum_unrolled<Lanes, Count, kDivide>(reduction);
  }
};
#if HWY_TARGET != HWY_SCALAR
struct UnrolledBf16 {
  template <std::size_t Count, bool kDivide>
  static HWY_ATTR std::size_t sum(const Reduction& reduction) {
    return sum_bf16_unrolled<Count, kDivide>(reduction);
  }
};
#endif

// Returns how many elements are done; the general path does the rest.
template <class Kernel, bool kDivide>
HWY_ATTR std::size_t sum_fast(const Reduction& reduction) {
  switch (reduction.leaves.size()) {
    case 1:
      return Kernel::template sum<1, kDivide>(reduction);
    case 2:
      return Kernel::template sum<2, kDivide>(reduction);
    case 3:
      return Kernel::template sum<3, kDivide>(reduction);
    case 4:
      return Kernel::template sum<4, kDivide>(reduction);
    case 5:
      return Kernel::template sum<5, kDivide>(reduction);
    case 6:
      return Kernel::template sum<6, kDivide>(reduction);
    case 7:
      return Kernel::template sum<7, kDivide>(reduction);
    case 8:
      return Kernel::template sum<8, kDivide>(reduction);
    default:
      return 0;
  }
}

template <class Kernel>
HWY_ATTR std::size_t sum_float(const Reduction& reduction) {
  return reduction.op == ReduceOp::average ? sum_fast<Kernel, true>(reduction) : sum_fast<Kernel, false>(reduction);
}

// More leaves than registers. A tile of each fits the second-level cache, so that they are read and, where the result
// goes there, written one after another instead of all at once: memory is faster that way.
constexpr std::size_t kWideTile = 1024;  // elements

template <class T>
HWY_ATTR void sum_subtree(std::span<const std::byte* const> leaves, std::size_t start, std::size_t count, T* out) {
  if (leaves.size() <= kMaxUnrolled) {
    std::array<const std::byte*, kMaxUnrolled> here;
    for (std::size_t i = 0; i < leaves.size(); ++i) here[i] = leaves[i] + start * sizeof(T);
    auto* target = reinterpret_cast<std::byte*>(out);
    sum_fast<Unrolled<PlainLanes<T>>, false>(
        {.leaves = {here.data(), leaves.size()}, .outputs = {&target, 1}, .elements = count});
    return;
  }
  const std::size_t left = left_leaves(leaves.size());
  alignas(64) T right[kWideTile];
  sum_subtree(leaves.first(left), start, count, out);
  sum_subtree(leaves.subspan(left), start, count, right);
  const hn::ScalableTag<T> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Store(hn::Add(hn::Load(d, out + i), hn::Load(d, right + i)), d, out + i);
}

template <class T, bool kDivide>
HWY_ATTR std::size_t sum_wide(const Reduction& reduction) {
  const hn::ScalableTag<T> d;
  const std::size_t step = hn::Lanes(d);
  const std::size_t end = reduction.elements / step * step;
  alignas(64) T sum[kWideTile];
  for (std::size_t start = 0; start < end; start += kWideTile) {
    const std::size_t count = std::min(kWideTile, end - start);
    sum_subtree(reduction.leaves, start, count, sum);
    if constexpr (kDivide) {
      const auto divisor = hn::Set(d, static_cast<T>(reduction.divisor));
      for (std::size_t i = 0; i < count; i += step) hn::Store(hn::Div(hn::Load(d, sum + i), divisor), d, sum + i);
    }
    for (std::byte* output : reduction.outputs) std::memcpy(output + start * sizeof(T), sum, count * sizeof(T));
  }
  return end;
}

HWY_ATTR std::size_t wide_path(const Reduction& reduction) {
  const bool sum = reduction.op == ReduceOp::sum;
  switch (reduction.dtype) {
    case DType::f32:
      return sum ? sum_wide<float, false>(reduction) : sum_wide<float, true>(reduction);
    case DType::f64:
      return sum ? sum_wide<double, false>(reduction) : sum_wide<double, true>(reduction);
    case DType::i32:
      return sum ? sum_wide<std::int32_t, false>(reduction) : 0;
    case DType::i64:
      return sum ? sum_wide<std::int64_t, false>(reduction) : 0;
    default:
      return 0;  // 16-bit types are rounded once, at the end
  }
}

HWY_ATTR std::size_t fast_path(const Reduction& reduction) {
  const bool sum = reduction.op == ReduceOp::sum, average = reduction.op == ReduceOp::average;
  if (!sum && !average) return 0;
  if (reduction.prescale != 1.0 || reduction.postscale != 1.0 || !reduction.numbers.empty()) return 0;
  if (std::find(reduction.leaves.begin(), reduction.leaves.end(), nullptr) != reduction.leaves.end()) return 0;
  if (reduction.leaves.size() > kMaxUnrolled) return wide_path(reduction);
  switch (reduction.dtype) {
    case DType::f32:
      return sum_float<Unrolled<PlainLanes<float>>>(reduction);
    case DType::f64:
      return sum_float<Unrolled<PlainLanes<double>>>(reduction);
#if HWY_TARGET != HWY_SCALAR
    case DType::bf16:
      if (reduction.leaves.size() == 1) return 0;  // nothing is added that would make a signalling NaN quiet
      return sum_float<UnrolledBf16>(reduction);
#endif
#if HWY_TARGET <= HWY_AVX2  // below, the conversion is not a single rounding instruction
    case DType::f16:
      return sum_float<Unrolled<F16Lanes>>(reduction);
#endif
    case DType::i32:
      return sum ? sum_fast<Unrolled<PlainLanes<std::int32_t>>, false>(reduction) : 0;
    case DType::i64:
      return sum ? sum_fast<Unrolled<PlainLanes<std::int64_t>>, false>(reduction) : 0;
    default:
      return 0;
  }
}

// --- the general path: T is what lies in memory, A what is added, Result what is written

constexpr std::size_t kTile = 256;

template <class T, class A>
struct Plain {
  using Element = T;
  using Accumulator = A;
  using Result = T;
  static A widen(T value) { return static_cast<A>(value); }
  static T narrow(A value) { return static_cast<T>(value); }
};
struct F16 {
  using Element = std::uint16_t;
  using Accumulator = float;
  using Result = std::uint16_t;
  static float widen(std::uint16_t value) { return f32_from_f16(value); }
  static std::uint16_t narrow(float value) { return f16_from_f32(value); }
};
struct Bf16 {
  using Element = std::uint16_t;
  using Accumulator = float;
  using Result = std::uint16_t;
  static float widen(std::uint16_t value) { return f32_from_bf16(value); }
  static std::uint16_t narrow(float value) { return bf16_from_f32(value); }
};
struct Bool {
  using Element = std::uint8_t;
  using Accumulator = std::uint8_t;
  using Result = std::uint8_t;
  static std::uint8_t widen(std::uint8_t value) { return value != 0 ? 1 : 0; }
  static std::uint8_t narrow(std::uint8_t value) { return value; }
};

// Partial sums of a 16-bit type: f32 comes in or goes out.
template <class Half>
struct Opened : Half {
  using Result = float;
  static float narrow(float value) { return value; }
};
template <class Half>
struct Closed : Half {
  using Element = float;
  static float widen(float value) { return value; }
};

struct Sum {
  template <class A>
  static A join(A a, A b) {
    if constexpr (std::is_integral_v<A>) {  // unsigned, so that overflow wraps instead of being undefined
      return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class A>
  static A join(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
// A comparison with NaN is false; `a != a` picks it up.
struct Min {
  template <class A>
  static A join(A a, A b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <class A>
  static A join(A a, A b) {
    return (a > b || a != a) ? a : b;
  }
};

template <class A>
HWY_ATTR void scale(A* values, std::size_t count, double factor) {
  if (factor == 1.0) return;
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<A>) {
      values[i] = static_cast<A>(static_cast<double>(values[i]) * factor);
    } else if constexpr (std::is_floating_point_v<A>) {
      values[i] *= static_cast<A>(factor);
    } else {
      values[i] *= static_cast<typename A::value_type>(factor);
    }
  }
}

// Which leaves of the list lie in which subtree: the list's part [from, to) belongs to the tree's [first, first + n).
struct Subtree {
  std::size_t from, to;
  std::size_t first, n;
};

std::size_t split_of(const Reduction& reduction, const Subtree& tree) {
  const std::size_t border = tree.first + left_leaves(tree.n);
  if (reduction.numbers.empty()) return border;
  const auto begin = reduction.numbers.begin();
  return static_cast<std::size_t>(std::lower_bound(begin + static_cast<std::ptrdiff_t>(tree.from),
                                                   begin + static_cast<std::ptrdiff_t>(tree.to), border) -
                                  begin);
}

// Evaluates the subtree over one tile into `out`; false when all its leaves are absent.
template <class Type, class Op>
HWY_ATTR bool tile_tree(const Reduction& reduction, const Subtree& tree, std::size_t start, std::size_t count,
                        typename Type::Accumulator* out) {
  if (tree.from == tree.to) return false;
  if (tree.to - tree.from == 1) {
    const std::byte* leaf = reduction.leaves[tree.from];
    if (leaf == nullptr) return false;
    const auto* from = reinterpret_cast<const typename Type::Element*>(leaf) + start;
    for (std::size_t i = 0; i < count; ++i) out[i] = Type::widen(from[i]);
    scale(out, count, reduction.prescale);
    return true;
  }
  const std::size_t left = left_leaves(tree.n), split = split_of(reduction, tree);
  const Subtree left_tree{tree.from, split, tree.first, left};
  const Subtree right_tree{split, tree.to, tree.first + left, tree.n - left};
  if (!tile_tree<Type, Op>(reduction, left_tree, start, count, out)) {
    return tile_tree<Type, Op>(reduction, right_tree, start, count, out);
  }
  typename Type::Accumulator right[kTile];
  if (tile_tree<Type, Op>(reduction, right_tree, start, count, right)) {
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::join(out[i], right[i]);
  }
  return true;
}

template <class Type, class Op, bool kDivide>
HWY_ATTR void general(const Reduction& reduction, std::size_t start) {
  using A = typename Type::Accumulator;
  A result[kTile];
  const std::size_t leaves = reduction.leaves.size();
  const Subtree whole{0, leaves, 0, reduction.numbers.empty() ? leaves : reduction.total};
  for (; start < reduction.elements; start += kTile) {
    const std::size_t count = std::min(kTile, reduction.elements - start);
    tile_tree<Type, Op>(reduction, whole, start, count, result);
    if constexpr (kDivide) {
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<A, std::complex<float>> || std::is_same_v<A, std::complex<double>>) {
          result[i] /= static_cast<typename A::value_type>(reduction.divisor);
        } else {
          result[i] /= static_cast<A>(reduction.divisor);
        }
      }
    }
    scale(result, count, reduction.postscale);
    for (std::byte* output : reduction.outputs) {
      auto* to = reinterpret_cast<typename Type::Result*>(output) + start;
      for (std::size_t i = 0; i < count; ++i) to[i] = Type::narrow(result[i]);
    }
  }
}

template <class Type, class AverageType = Type>
HWY_ATTR void real_number(const Reduction& reduction, std::size_t start) {
  switch (reduction.op) {
    case ReduceOp::sum:
      return general<Type, Sum, false>(reduction, start);
    case ReduceOp::average:
      return general<AverageType, Sum, true>(reduction, start);
    case ReduceOp::min:
      return general<Type, Min, false>(reduction, start);
    case ReduceOp::max:
      return general<Type, Max, false>(reduction, start);
    case ReduceOp::product:
      return general<Type, Product, false>(reduction, start);
    case ReduceOp::adasum:
      return;  // is no matter of single elements: adasum.cpp
  }
}

template <class T>
HWY_ATTR void integer(const Reduction& reduction, std::size_t start) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  real_number<Plain<T, T>, Plain<T, Wide>>(reduction, start);
}

template <class C>
HWY_ATTR void complex_number(const Reduction& reduction, std::size_t start) {
  switch (reduction.op) {
    case ReduceOp::sum:
      return general<Plain<C, C>, Sum, false>(reduction, start);
    case ReduceOp::average:
      return general<Plain<C, C>, Sum, true>(reduction, start);
    case ReduceOp::product:
      return general<Plain<C, C>, Product, false>(reduction, start);
    default:
      return;  // refused by is_defined
  }
}

HWY_ATTR void boolean(const Reduction& reduction, std::size_t start) {
  const bool any = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::max;
  any ? general<Bool, Max, false>(reduction, start) : general<Bool, Min, false>(reduction, start);
}

HWY_ATTR void reduce_converting(const Reduction& reduction) {
  if (reduction.dtype == DType::f16) return real_number<Opened<F16>>(reduction, 0);
  if (reduction.dtype == DType::bf16) return real_number<Opened<Bf16>>(reduction, 0);
  return *reduction.result_dtype == DType::f16 ? real_number<Closed<F16>>(reduction, 0)
                                               : real_number<Closed<Bf16>>(reduction, 0);
}

HWY_ATTR void reduce(const Reduction& reduction) {
  if (reduction.result_dtype.value_or(reduction.dtype) != reduction.dtype) return reduce_converting(reduction);
  const std::size_t done = fast_path(reduction);
  if (done == reduction.elements) return;
  switch (reduction.dtype) {
    case DType::boolean:
      return boolean(reduction, done);
    case DType::u8:
      return integer<std::uint8_t>(reduction, done);
    case DType::i8:
      return integer<std::int8_t>(reduction, done);
    case DType::u16:
      return integer<std::uint16_t>(reduction, done);
    case DType::i16:
      return integer<std::int16_t>(reduction, done);
    case DType::u32:
      return integer<std::uint32_t>(reduction, done);
    case DType::i32:
      return integer<std::int32_t>(reduction, done);
    case DType::u64:
      return integer<std::uint64_t>(reduction, done);
    case DType::i64:
      return integer<std::int64_t>(reduction, done);
    case DType::f16:
      return real_number<F16>(reduction, done);
    case DType::bf16:
      return real_number<Bf16>(reduction, done);
    case DType::f32:
      return real_number<Plain<float, float>>(reduction, done);
    case DType::f64:
      return real_number<Plain<double, double>>(reduction, done);
    case DType::c64:
      return complex_number<std::complex<float>>(reduction, done);
    case DType::c128:
      return complex_number<std::complex<double>>(reduction, done);
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace lockstep::collective::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::collective {

HWY_EXPORT(reduce);
HWY_EXPORT(target_name);

void reduce(const Reduction& reduction) { HWY_DYNAMIC_DISPATCH(reduce)(reduction); }

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

bool converts(DType leaves, DType result) {
  auto is_half = [](DType type) { return type == DType::f16 || type == DType::bf16; };
  return leaves == result || (leaves == DType::f32 && is_half(result)) || (is_half(leaves) && result == DType::f32);
}

bool is_defined(DType dtype, ReduceOp op) {
  if (op == ReduceOp::adasum) {
    return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
  }
  if (dtype == DType::boolean) return op != ReduceOp::average;
  if (dtype == DType::c64 || dtype == DType::c128) return op != ReduceOp::min && op != ReduceOp::max;
  return true;
}

}  // namespace lockstep::collective
#endif
