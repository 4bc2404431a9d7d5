// All-reduce and reduce with an epilogue, where every rank can address every tensor.
//
// Unlike in direct_reduce.cpp nobody takes over another's work, because an epilogue may keep state for the elements
// that its rank owns: each rank reduces its own slice, piece by piece, and writes it to all outputs.
#include <algorithm>

#include "collective/algorithm.hpp"
#include "collective/part_reducer.hpp"
#include "collective/reach.hpp"
#include "collective/slices.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPiece = 256 * 1024;  // bytes between two looks for a verdict
constexpr int kPiecesAtOnce = 8;            // before other operations get their turn

class SlicedReduce final : public Algorithm {
 public:
  explicit SlicedReduce(const Call& call)
      : call_(call), shared_(*call.transport->shared()), reducer_(call_), reach_(call_, reducer_.leaves()) {
    const Party& first = call_.first_present();
    finished_ = first.scratch;
    const ElementRange mine = slice_of(call_, static_cast<std::size_t>(call_.self));
    next_ = mine.offset;
    end_ = mine.offset + mine.count;
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present && (call_.kind == Kind::all_reduce || call_.is_root(i))) takers_.push_back(i);
    }
    outputs_.resize(takers_.size());
  }

  bool advance() override {
    for (int i = 0; i < kPiecesAtOnce && next_ < end_; ++i) {
      if (!work()) return false;
    }
    if (next_ < end_) return false;
    if (!counted_) {
      counted_ = true;
      if (finished_->fetch_add(1, std::memory_order_seq_cst) + 1 == call_.present()) call_.transport->ring_everybody();
    }
    return finished_->load(std::memory_order_acquire) == call_.present();
  }

 private:
  // False when the world has ended, or a party is gone, which will end it.
  bool work() {
    const transport::Access access(&shared_);
    if (!access) return false;
    const std::size_t width = size_of(call_.dtype), result_width = size_of(call_.result_dtype);
    const std::size_t step = std::min(kPiece, reach_.block_bytes()) / std::max(width, result_width);
    const std::size_t elements = std::min(step, end_ - next_);
    const auto leaves = reach_.leaves(next_ * width, elements * width);
    if (leaves.empty()) return false;
    for (std::size_t i = 0; i < takers_.size(); ++i) {
      outputs_[i] = reach_.output(takers_[i], next_ * result_width, elements * result_width);
    }
    reducer_.reduce(next_, elements, leaves, outputs_);
    for (std::size_t taker : takers_) {
      if (!reach_.deliver(taker, next_ * result_width, elements * result_width)) return false;
    }
    next_ += elements;
    return true;
  }

  Call call_;
  transport::SharedMemory& shared_;
  PartReducer reducer_;
  Reach reach_;
  std::atomic<std::uint32_t>* finished_;  // ranks whose slice is done
  std::size_t next_ = 0;                  // element
  std::size_t end_ = 0;
  bool counted_ = false;
  std::vector<std::size_t> takers_;  // who gets the result
  std::vector<std::byte*> outputs_;
};

}  // namespace

std::unique_ptr<Algorithm> make_sliced_reduce(const Call& call) { return std::make_unique<SlicedReduce>(call); }

}  // namespace lockstep::collective
