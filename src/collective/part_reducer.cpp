#include "collective/part_reducer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "collective/reduce_kernel.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kEpiloguePiece = 64 * 1024;  // bytes that stay in the cache between reduction and epilogue

void run_epilogue(const Call& call, const ReducedSlice& slice) {
  auto fail = [&](const char* text) {
    throw Error(ErrorCode::aborted, fmt::format("its epilogue failed at elements {} to {}: {}", slice.offset,
                                                slice.offset + slice.count - 1, text));
  };
  try {
    call.epilogue(slice);
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception of unknown type");
  }
}

}  // namespace

void reduce_with_epilogue(const Call& call, std::size_t offset, const Reduction& reduction,
                          std::vector<std::byte>& buffer) {
  const std::size_t width = size_of(reduction.dtype);
  const std::size_t result_width = size_of(reduction.result_dtype.value_or(reduction.dtype));
  const std::size_t piece = kEpiloguePiece / result_width;
  buffer.resize(std::max(buffer.size(), std::min(piece, reduction.elements) * result_width));
  std::byte* const result = buffer.data();
  std::vector<const std::byte*> leaves(reduction.leaves.size());
  Reduction part = reduction;
  part.leaves = leaves;
  part.outputs = {&result, 1};
  for (std::size_t done = 0; done < reduction.elements; done += piece) {
    part.elements = std::min(piece, reduction.elements - done);
    std::transform(reduction.leaves.begin(), reduction.leaves.end(), leaves.begin(),
                   [&](auto* leaf) { return leaf + done * width; });
    reduce(part);
    run_epilogue(call, {.offset = offset + done, .count = part.elements, .values = result});
    for (std::byte* output : reduction.outputs)
      std::memcpy(output + done * result_width, result, part.elements * result_width);
  }
}

PartReducer::PartReducer(const Call& call) : call_(call), table_(call) {}

void PartReducer::reduce(std::size_t offset, std::size_t elements, std::span<const std::byte* const> leaves,
                         std::span<std::byte* const> outputs) {
  const Reduction reduction{.dtype = call_.dtype,
                            .result_dtype = call_.result_dtype,
                            .op = call_.op,
                            .leaves = leaves,
                            .numbers = table_.numbers(),
                            .total = table_.total(),
                            .outputs = outputs,
                            .elements = elements,
                            .divisor = call_.divisor,
                            .prescale = call_.prescale,
                            .postscale = call_.postscale};
  call_.epilogue ? reduce_with_epilogue(call_, offset, reduction, buffer_) : collective::reduce(reduction);
}

}  // namespace lockstep::collective
