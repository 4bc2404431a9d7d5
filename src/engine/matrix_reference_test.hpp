// What the operations are by definition, for the matrix of all of them: plain loops over plain values.
#pragma once

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#include "base/half.hpp"
#include "base/reduction_tree.hpp"
#include "collective/reduce_kernel.hpp"
#include "lockstep/types.hpp"

namespace lockstep::engine::matrix {

using Bytes = std::vector<unsigned char>;  // not std::byte, which libstdc++ compares one by one

// Element types: T lies in memory, A is what it is added in.

template <class T, class A = T>
struct Plain {
  using Element = T;
  using Sum = A;
  static A up(T value) { return static_cast<A>(value); }
  static T down(A value) { return static_cast<T>(value); }
};
struct Half : Plain<std::uint16_t, float> {
  static float up(std::uint16_t value) { return f32_from_f16(value); }
  static std::uint16_t down(float value) { return f16_from_f32(value); }
};
struct Brain : Plain<std::uint16_t, float> {
  static float up(std::uint16_t value) { return f32_from_bf16(value); }
  static std::uint16_t down(float value) { return bf16_from_f32(value); }
};

template <class Visitor>
auto visit_type(DType dtype, ReduceOp op, const Visitor& visit) {
  const bool average = op == ReduceOp::average;
  switch (dtype) {
    case DType::boolean:
      return visit(Plain<std::uint8_t>());
    case DType::u8:
      return average ? visit(Plain<std::uint8_t, std::uint64_t>()) : visit(Plain<std::uint8_t>());
    case DType::i8:
      return average ? visit(Plain<std::int8_t, std::int64_t>()) : visit(Plain<std::int8_t>());
    case DType::u16:
      return average ? visit(Plain<std::uint16_t, std::uint64_t>()) : visit(Plain<std::uint16_t>());
    case DType::i16:
      return average ? visit(Plain<std::int16_t, std::int64_t>()) : visit(Plain<std::int16_t>());
    case DType::u32:
      return average ? visit(Plain<std::uint32_t, std::uint64_t>()) : visit(Plain<std::uint32_t>());
    case DType::i32:
      return average ? visit(Plain<std::int32_t, std::int64_t>()) : visit(Plain<std::int32_t>());
    case DType::u64:
      return visit(Plain<std::uint64_t>());
    case DType::i64:
      return visit(Plain<std::int64_t>());
    case DType::f16:
      return visit(Half());
    case DType::bf16:
      return visit(Brain());
    case DType::f32:
      return visit(Plain<float>());
    case DType::f64:
      return visit(Plain<double>());
    case DType::c64:
      return visit(Plain<std::complex<float>>());
    case DType::c128:
      return visit(Plain<std::complex<double>>());
  }
  return visit(Plain<float>());
}

template <class A>
A join(DType dtype, ReduceOp op, A a, A b) {
  if constexpr (std::is_same_v<A, std::complex<float>> || std::is_same_v<A, std::complex<double>>) {
    return op == ReduceOp::product ? a * b : a + b;
  } else {
    if (dtype == DType::boolean) return op == ReduceOp::sum || op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
    switch (op) {
      case ReduceOp::min:
        return std::min(a, b);
      case ReduceOp::max:
        return std::max(a, b);
      case ReduceOp::product:
        return static_cast<A>(a * b);
      default:
        return static_cast<A>(a + b);
    }
  }
}

// The reduction of all ranks' tensors, by definition; an empty leaf is absent.
inline Bytes reference(DType dtype, ReduceOp op, const std::vector<Bytes>& leaves, std::size_t elements,
                       std::uint64_t divisor) {
  Bytes result(elements * size_of(dtype));
  visit_type(dtype, op, [&](auto type) {
    using Type = decltype(type);
    using T = typename Type::Element;
    using A = typename Type::Sum;
    for (std::size_t i = 0; i < elements; ++i) {
      A value = *reduce_tree(
          0, leaves.size(),
          [&](std::size_t leaf) -> std::optional<A> {
            if (leaves[leaf].empty()) return std::nullopt;
            T element;
            std::memcpy(&element, leaves[leaf].data() + i * sizeof(T), sizeof(T));
            return Type::up(element);
          },
          [&](A a, A b) { return join(dtype, op, a, b); });
      if (op == ReduceOp::average) value = value / static_cast<A>(divisor);
      const T element = Type::down(value);
      std::memcpy(result.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return result;
}

// Small numbers, so that nothing overflows and products stay finite; fractions where the type has them.
inline Bytes values(DType dtype, int rank, std::size_t elements, unsigned salt = 0) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919 + salt * 104'729 + static_cast<unsigned>(dtype));
  Bytes bytes(elements * size_of(dtype));
  visit_type(dtype, ReduceOp::sum, [&](auto type) {
    using T = typename decltype(type)::Element;
    for (std::size_t i = 0; i < elements; ++i) {
      T element{};
      const int number = static_cast<int>(random() % 5);
      if (dtype == DType::boolean) {
        element = static_cast<T>(number % 2);
      } else if (dtype == DType::f16) {
        if constexpr (sizeof(T) == 2)
          element = static_cast<T>(f16_from_f32(static_cast<float>(random() % 4096) / 1024 - 2));
      } else if (dtype == DType::bf16) {
        if constexpr (sizeof(T) == 2)
          element = static_cast<T>(bf16_from_f32(static_cast<float>(random() % 4096) / 1024 - 2));
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(number - (std::is_signed_v<T> ? 2 : 0));
      } else {
        element = T(static_cast<float>(random() % 100'000) / 33'333 - 1);
      }
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return bytes;
}

/// How operations are submitted.
enum class Submission { blocking, async, grouped };

struct Case {
  DType dtype;
  std::int64_t rows;
  std::int64_t columns;
  bool in_heap;
  Submission submission;

  std::size_t elements() const { return static_cast<std::size_t>(rows * columns); }
};

/// What every rank gives in a case, and what must come of it. Worked out once, before the ranks start: they share it
/// without synchronising, which would hide races from the thread sanitizer.
struct Known {
  Known(const Case& of, int size) : one(of) {
    for (int rank = 0; rank < size; ++rank) {
      leaves.push_back(values(one.dtype, rank, one.elements()));
      given.push_back(values(one.dtype, rank, given_rows(rank) * row(), 1));
      sent.push_back(values(one.dtype, rank, sent_rows(rank, size) * row(), 2));
      for (unsigned tag : {0U, 1U}) passed[tag].push_back(values(one.dtype, rank, one.elements(), 10 + tag));
      all_rows += static_cast<std::int64_t>(given_rows(rank));
      all_given.insert(all_given.end(), given.back().begin(), given.back().end());
    }
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      if (collective::is_defined(one.dtype, op))
        reduced[op] = reference(one.dtype, op, leaves, one.elements(), static_cast<std::uint64_t>(size));
    }
  }

  std::size_t row() const { return static_cast<std::size_t>(one.columns); }
  std::size_t row_bytes() const { return row() * size_of(one.dtype); }

  /// Rank r gives rows + r rows, rank 1 none at all.
  std::size_t given_rows(int rank) const { return rank == 1 ? 0 : static_cast<std::size_t>(one.rows + rank); }

  /// Rank a sends (a + b) % 3 rows to rank b.
  static std::size_t rows_between(int from, int to) { return static_cast<std::size_t>((from + to) % 3); }

  /// Rows that a rank sends to the ranks before `end`.
  static std::size_t sent_rows(int from, int end) {
    std::size_t rows = 0;
    for (int to = 0; to < end; ++to) rows += rows_between(from, to);
    return rows;
  }

  Case one;
  std::vector<Bytes> leaves;          // by rank
  std::map<ReduceOp, Bytes> reduced;  // those that the type has
  std::vector<Bytes> given;           // by rank: to gather
  Bytes all_given;
  std::int64_t all_rows = 0;
  std::vector<Bytes> sent;       // by rank: to all the others
  std::vector<Bytes> passed[2];  // by tag and rank: to the next rank
};

}  // namespace lockstep::engine::matrix
