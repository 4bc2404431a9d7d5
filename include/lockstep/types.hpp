// The words that describe a tensor and a reduction. The engine sees nothing else of a framework.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/export.hpp"

namespace lockstep {

/// Numbers are part of the C interface and of what travels between ranks: append, never renumber.
enum class DType : std::int32_t {
  boolean = 0,
  u8 = 1,
  i8 = 2,
  u16 = 3,
  i16 = 4,
  u32 = 5,
  i32 = 6,
  u64 = 7,
  i64 = 8,
  f16 = 9,
  bf16 = 10,
  f32 = 11,
  f64 = 12,
  c64 = 13,
  c128 = 14,
};
inline constexpr int kDTypeCount = 15;

/// Same numbers as Horovod's constants, so that programs which print or store them agree.
enum class ReduceOp : std::int32_t { average = 0, sum = 1, adasum = 2, min = 3, max = 4, product = 5 };

enum class Device : std::int32_t { cpu = 0 };

LOCKSTEP_API std::size_t size_of(DType dtype);
LOCKSTEP_API const char* name_of(DType dtype);
LOCKSTEP_API const char* name_of(ReduceOp op);

/// A tensor that belongs to the caller. The memory must stay valid and untouched until the operation is complete.
/// `strides` is in elements; empty means row-major and contiguous. Only dense layouts are accepted: the elements fill
/// the memory without gaps, in any order of dimensions, and that order must be the same on all ranks.
/// `name` matches the operation between ranks; empty means "matched by order".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides = {};
  Device device = Device::cpu;
  std::string name = {};

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto extent : shape) n *= extent;
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
};

}  // namespace lockstep
