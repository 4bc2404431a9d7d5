#include "lockstep/types.hpp"

#include "lockstep/error.hpp"

namespace lockstep {
namespace {

struct DTypeRow {
  const char* name;
  std::size_t size;
};
constexpr DTypeRow kDTypes[kDTypeCount] = {
    {"bool", 1},     {"uint8", 1},   {"int8", 1},    {"uint16", 2},    {"int16", 2},
    {"uint32", 4},   {"int32", 4},   {"uint64", 8},  {"int64", 8},     {"float16", 2},
    {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"complex64", 8}, {"complex128", 16},
};
constexpr const char* kReduceOps[] = {"average", "sum", "adasum", "min", "max", "product"};

const DTypeRow& row(DType dtype) {
  auto index = static_cast<std::int32_t>(dtype);
  if (index < 0 || index >= kDTypeCount) {
    throw Error(ErrorCode::invalid_argument, "unknown element type number " + std::to_string(index));
  }
  return kDTypes[index];
}

}  // namespace

std::size_t size_of(DType dtype) { return row(dtype).size; }
const char* name_of(DType dtype) { return row(dtype).name; }

const char* name_of(ReduceOp op) {
  auto index = static_cast<std::int32_t>(op);
  if (index < 0 || index > 5) {
    throw Error(ErrorCode::invalid_argument, "unknown reduction number " + std::to_string(index));
  }
  return kReduceOps[index];
}

}  // namespace lockstep
