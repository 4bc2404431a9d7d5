// All-reduce and reduce by messages: direct reduce-scatter, then the results to everybody, or to the root.
//
// The tensor is cut into one slice per rank. Each rank sends every other rank that rank's slice of all that it gives,
// adds the versions of its own slice in the fixed tree order, and sends on the result. Two meetings for any number of
// ranks, and the same pairing of additions as every other algorithm.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/part_reducer.hpp"
#include "collective/slices.hpp"

namespace lockstep::collective {
namespace {

constexpr std::uint32_t kPartial = 0;  // message parts
constexpr std::uint32_t kReduced = 1;

class ExchangeReduce final : public Algorithm {
 public:
  explicit ExchangeReduce(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        self_(static_cast<std::size_t>(call.self)),
        reducer_(call_),
        partials_(call.count()) {
    for (std::size_t i = 0; i < call_.count(); ++i) slices_.push_back(slice_of(call_, i));
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present) continue;
      if (i == self_) {
        partials_[i] = part_for(self_);
      } else if (gives(self_)) {
        messages_.send(call_.parties[i].rank, call_.id, kPartial, part_for(i));
      }
    }
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i == self_ || !gives(i)) continue;
      partials_[i].resize(slices_[self_].count * size_of(call_.dtype) * partials_of(call_, i));
      awaited_.push_back(i);
    }
    output_ = takes(self_) ? call_.make_output(call_.parties[self_].rows) : nullptr;
  }

  bool advance() override {
    if (!reduced_) {
      if (!receive_all(kPartial)) return false;
      reduce_mine();
    }
    return !takes(self_) || receive_all(kReduced);
  }

 private:
  bool takes(std::size_t index) const { return call_.kind == Kind::all_reduce || call_.is_root(index); }
  bool gives(std::size_t index) const { return partials_of(call_, index) > 0; }

  // The receiver's slice of each of this rank's partial sums, one behind the other.
  std::vector<std::byte> part_for(std::size_t receiver) const {
    const std::size_t width = size_of(call_.dtype);
    std::vector<std::byte> packed;
    for (std::size_t i = 0; i < partials_of(call_, self_); ++i) {
      const std::byte* from = call_.input + i * call_.bytes() + slices_[receiver].offset * width;
      packed.insert(packed.end(), from, from + slices_[receiver].count * width);
    }
    return packed;
  }

  std::span<std::byte> result_of(std::size_t index) {
    const std::size_t width = size_of(call_.result_dtype);
    return {output_ + slices_[index].offset * width, slices_[index].count * width};
  }

  bool receive_all(std::uint32_t part) {
    std::erase_if(awaited_, [&](std::size_t i) {
      const std::span<std::byte> target = part == kPartial ? std::span<std::byte>(partials_[i]) : result_of(i);
      return messages_.receive(call_.parties[i].rank, call_.id, part, target);
    });
    return awaited_.empty();
  }

  void reduce_mine() {
    const ElementRange mine = slices_[self_];
    std::vector<const std::byte*> leaves;
    for (const LeafTable::Entry& entry : reducer_.leaves().entries()) {
      leaves.push_back(partials_[entry.party].data() + entry.partial * mine.count * size_of(call_.dtype));
    }
    std::vector<std::byte> result(mine.count * size_of(call_.result_dtype));
    std::byte* target = result.data();
    if (mine.count > 0) reducer_.reduce(mine.offset, mine.count, leaves, {&target, 1});
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present) continue;
      if (takes(i)) give_result(i, result);
      if (i != self_) awaited_.push_back(i);
    }
    reduced_ = true;
  }

  void give_result(std::size_t taker, std::span<const std::byte> result) {
    if (taker != self_) return messages_.send(call_.parties[taker].rank, call_.id, kReduced, result);
    if (!result.empty()) std::memcpy(result_of(self_).data(), result.data(), result.size());
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  PartReducer reducer_;
  std::vector<ElementRange> slices_;              // by party
  std::vector<std::vector<std::byte>> partials_;  // by party: of this rank's slice
  std::vector<std::size_t> awaited_;
  std::byte* output_ = nullptr;
  bool reduced_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_reduce(const Call& call) { return std::make_unique<ExchangeReduce>(call); }

}  // namespace lockstep::collective
