// All-reduce and reduce by messages: direct reduce-scatter, then the results to everybody, or to the root.
//
// The tensor is cut into one slice per rank. Each rank sends every other rank that rank's slice, adds the p versions of
// its own slice in the fixed tree order, and sends on the result. Two meetings for any number of ranks, and the same
// pairing of additions as every other algorithm.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/routes.hpp"

namespace lockstep::collective {
namespace {

constexpr std::uint32_t kPartial = 0;  // message parts
constexpr std::uint32_t kResult = 1;

struct Slice {
  std::size_t offset = 0;  // bytes
  std::size_t bytes = 0;
};

class ExchangeReduce final : public Algorithm {
 public:
  explicit ExchangeReduce(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        self_(static_cast<std::size_t>(call.self)),
        slices_(call.count()) {
    std::size_t index = 0;
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present) continue;
      const Rows part = equal_part(static_cast<std::int64_t>(call_.elements), index++, call_.present());
      slices_[i] = {static_cast<std::size_t>(part.first) * size_of(call_.dtype),
                    static_cast<std::size_t>(part.count) * size_of(call_.dtype)};
    }
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present && i != self_) {
        messages_.send(call_.parties[i].rank, call_.id, kPartial, {call_.input + slices_[i].offset, slices_[i].bytes});
      }
    }
    partials_.assign(call_.count(), std::vector<std::byte>(slices_[self_].bytes));
    std::memcpy(partials_[self_].data(), call_.input + slices_[self_].offset, slices_[self_].bytes);
    output_ = takes(self_) ? call_.make_output(call_.parties[self_].rows) : nullptr;
    expect_from_all();
  }

  bool advance() override {
    if (!reduced_) {
      if (!receive_all(kPartial)) return false;
      reduce_mine();
    }
    return !takes(self_) || receive_all(kResult);
  }

 private:
  bool takes(std::size_t index) const { return call_.kind == Kind::all_reduce || call_.is_root(index); }

  void expect_from_all() {
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present && i != self_) awaited_.push_back(i);
    }
  }

  bool receive_all(std::uint32_t part) {
    std::erase_if(awaited_, [&](std::size_t i) {
      const std::span<std::byte> target = part == kPartial
                                              ? std::span<std::byte>(partials_[i])
                                              : std::span<std::byte>(output_ + slices_[i].offset, slices_[i].bytes);
      return messages_.receive(call_.parties[i].rank, call_.id, part, target);
    });
    return awaited_.empty();
  }

  void reduce_mine() {
    const Slice mine = slices_[self_];
    std::vector<const std::byte*> leaves(call_.count(), nullptr);
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present) leaves[i] = partials_[i].data();
    }
    std::vector<std::byte> result(mine.bytes);
    std::byte* target = result.data();
    reduce({.dtype = call_.dtype,
            .op = call_.op,
            .leaves = leaves,
            .outputs = {&target, 1},
            .elements = mine.bytes / size_of(call_.dtype),
            .divisor = call_.divisor,
            .prescale = call_.prescale,
            .postscale = call_.postscale});
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present || !takes(i)) continue;
      if (i == self_) {
        std::memcpy(output_ + mine.offset, target, mine.bytes);
      } else {
        messages_.send(call_.parties[i].rank, call_.id, kResult, result);
      }
    }
    reduced_ = true;
    expect_from_all();
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  std::vector<Slice> slices_;
  std::vector<std::vector<std::byte>> partials_;
  std::vector<std::size_t> awaited_;
  std::byte* output_ = nullptr;
  bool reduced_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_reduce(const Call& call) { return std::make_unique<ExchangeReduce>(call); }

}  // namespace lockstep::collective
