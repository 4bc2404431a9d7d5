#include "collective/part_reducer.hpp"

#include "collective/reduce_kernel.hpp"

namespace lockstep::collective {

PartReducer::PartReducer(const Call& call) : call_(call), table_(call) {}

void PartReducer::reduce(std::size_t, std::size_t elements, std::span<const std::byte* const> leaves,
                         std::span<std::byte* const> outputs) {
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
