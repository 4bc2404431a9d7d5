// All-reduce by messages: direct reduce-scatter, then all-gather.
//
// The tensor is cut into one slice per rank. Each rank sends every other rank that rank's slice, adds the p versions of
// its own slice in the fixed tree order, and sends the result to all. Two meetings for any number of ranks, and the same
// pairing of additions as every other algorithm.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/reduce_kernel.hpp"

namespace lockstep::collective {
namespace {

constexpr std::uint32_t kPartial = 0;  // message parts
constexpr std::uint32_t kResult = 1;

struct Slice {
  std::size_t offset;  // bytes
  std::size_t bytes;
};

// The first ranks get one element more when it does not divide evenly.
Slice slice_of(const Call& call, std::size_t index) {
  const std::size_t width = size_of(call.dtype);
  const std::size_t base = call.elements / call.count(), extra = call.elements % call.count();
  const std::size_t start = index * base + std::min(index, extra);
  return {start * width, (base + (index < extra ? 1 : 0)) * width};
}

class ExchangeAllReduce final : public Algorithm {
 public:
  explicit ExchangeAllReduce(const Call& call)
      : call_(call), messages_(*call.transport->messages()), self_(static_cast<std::size_t>(call.self)) {
    const Slice mine = slice_of(call_, self_);
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i == self_) continue;
      const Slice theirs = slice_of(call_, i);
      messages_.send(call_.parties[i].rank, call_.id, kPartial, {call_.input + theirs.offset, theirs.bytes});
    }
    partials_.assign(call_.count(), std::vector<std::byte>(mine.bytes));
    std::memcpy(partials_[self_].data(), call_.input + mine.offset, mine.bytes);
    have_.assign(call_.count(), false);
    have_[self_] = true;
  }

  bool advance() override {
    if (!reduced_) {
      if (!receive_all(kPartial)) return false;
      reduce_mine();
    }
    return receive_all(kResult);
  }

 private:
  bool receive_all(std::uint32_t part) {
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (have_[i]) continue;
      const Slice theirs = slice_of(call_, i);
      std::span<std::byte> target = part == kPartial ? std::span<std::byte>(partials_[i])
                                                     : std::span<std::byte>(call_.output + theirs.offset, theirs.bytes);
      have_[i] = messages_.receive(call_.parties[i].rank, call_.id, part, target);
    }
    return std::all_of(have_.begin(), have_.end(), [](bool here) { return here; });
  }

  void reduce_mine() {
    const Slice mine = slice_of(call_, self_);
    std::vector<const std::byte*> leaves;
    for (const auto& partial : partials_) leaves.push_back(partial.data());
    std::byte* output = call_.output + mine.offset;
    reduce({.dtype = call_.dtype,
            .op = call_.op,
            .leaves = leaves,
            .outputs = {&output, 1},
            .elements = mine.bytes / size_of(call_.dtype),
            .divisor = call_.count()});
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i != self_) messages_.send(call_.parties[i].rank, call_.id, kResult, {output, mine.bytes});
    }
    reduced_ = true;
    have_.assign(call_.count(), false);
    have_[self_] = true;
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  std::vector<std::vector<std::byte>> partials_;
  std::vector<bool> have_;
  bool reduced_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_all_reduce(const Call& call) { return std::make_unique<ExchangeAllReduce>(call); }

}  // namespace lockstep::collective
