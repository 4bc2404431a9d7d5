// All-reduce and reduce where every rank can address every tensor.
//
// The tensor is cut into chunks, which ranks claim (chunks.hpp). Who has claimed one reads it from all ranks' inputs,
// adds in the fixed tree order, and writes the result to all ranks' outputs. Since each element is computed by one rank
// in one order, it does not matter which.
#include <algorithm>

#include "collective/algorithm.hpp"
#include "collective/chunks.hpp"
#include "collective/part_reducer.hpp"
#include "collective/reach.hpp"

namespace lockstep::collective {
namespace {

class DirectReduce final : public Algorithm {
 public:
  explicit DirectReduce(const Call& call)
      : call_(call), shared_(*call.transport->shared()), reducer_(call_), reach_(call_, reducer_.leaves()) {
    chunk_ = chunk_bytes(call_.bytes(), call_.present()) / size_of(call_.dtype);
    chunks_ = static_cast<std::uint32_t>((call_.elements + chunk_ - 1) / chunk_);
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present) continue;
      if (call_.is_self(i)) own_ = words_.size();
      words_.push_back(call_.parties[i].scratch);
      if (call_.kind == Kind::all_reduce || call_.is_root(i)) takers_.push_back(i);
    }
    outputs_.resize(takers_.size());
  }

  bool advance() override {
    Chunks chunks(words_, own_, chunks_);
    const auto work_on_one = [&](std::uint32_t chunk) {
      worked_ = true;
      return work(chunk);
    };
    if (!chunks.do_some(shared_, kChunksAtOnce, work_on_one) || !chunks.complete()) return false;
    // Who did something may have done the last: those who sleep must hear of it.
    if (worked_) call_.transport->ring_everybody();
    return true;
  }

 private:
  // False when a party is gone; then the chunk stays undone, and the verdict over that party ends the operation.
  bool work(std::uint32_t chunk) {
    const std::size_t width = size_of(call_.dtype), result_width = size_of(call_.result_dtype);
    const std::size_t end = std::min((chunk + 1) * chunk_, call_.elements);
    const std::size_t step = std::min(reach_.block_bytes() / width, chunk_);
    for (std::size_t offset = chunk * chunk_; offset < end; offset += step) {
      const std::size_t elements = std::min(step, end - offset);
      const auto leaves = reach_.leaves(offset * width, elements * width);
      if (leaves.empty()) return false;
      for (std::size_t i = 0; i < takers_.size(); ++i) {
        outputs_[i] = reach_.output(takers_[i], offset * result_width, elements * result_width);
      }
      reducer_.reduce(offset, elements, leaves, outputs_);
      for (std::size_t taker : takers_) {
        if (!reach_.deliver(taker, offset * result_width, elements * result_width)) return false;
      }
    }
    return true;
  }

  Call call_;
  transport::SharedMemory& shared_;
  PartReducer reducer_;
  Reach reach_;
  std::vector<Chunks::Words> words_;  // by rank that is present
  std::size_t own_ = 0;               // this rank among them
  bool worked_ = false;
  std::size_t chunk_ = 0;  // elements
  std::uint32_t chunks_ = 0;
  std::vector<std::size_t> takers_;  // who gets the result
  std::vector<std::byte*> outputs_;
};

}  // namespace

std::unique_ptr<Algorithm> make_direct_reduce(const Call& call) { return std::make_unique<DirectReduce>(call); }

}  // namespace lockstep::collective
