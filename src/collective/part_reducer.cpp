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

PartReducer::PartReducer(const Call& call) : call_(call), table_(call) {}

void PartReducer::reduce(std::size_t offset, std::size_t elements, std::span<const std::byte* const> leaves,
                         std::span<std::byte* const> outputs) {
  if (!call_.epilogue) return reduce_plainly(elements, leaves, outputs);
  const std::size_t width = size_of(call_.dtype), result_width = size_of(call_.result_dtype);
  const std::size_t piece = kEpiloguePiece / result_width;
  buffer_.resize(std::min(piece, elements) * result_width);
  std::vector<const std::byte*> parts(leaves.size());
  for (std::size_t done = 0; done < elements; done += piece) {
    const std::size_t count = std::min(piece, elements - done);
    std::transform(leaves.begin(), leaves.end(), parts.begin(), [&](auto* leaf) { return leaf + done * width; });
    std::byte* result = buffer_.data();
    reduce_plainly(count, parts, {&result, 1});
    run_epilogue(call_, {.offset = offset + done, .count = count, .values = result});
    for (std::byte* output : outputs) std::memcpy(output + done * result_width, result, count * result_width);
  }
}

void PartReducer::reduce_plainly(std::size_t elements, std::span<const std::byte* const> leaves,
                                 std::span<std::byte* const> outputs) const {
  collective::reduce({.dtype = call_.dtype,
                      .result_dtype = call_.result_dtype,
                      .op = call_.op,
                      .leaves = leaves,
                      .numbers = table_.numbers(),
                      .total = table_.total(),
                      .outputs = outputs,
                      .elements = elements,
                      .divisor = call_.divisor,
                      .prescale = call_.prescale,
                      .postscale = call_.postscale});
}

}  // namespace lockstep::collective
