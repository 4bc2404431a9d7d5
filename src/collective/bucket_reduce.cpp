// As direct_reduce.cpp, over the parts of a bucket as if they lay one behind the other: chunks are claimed, and a chunk
// may hold several small tensors, or a piece of a large one.
#include "collective/bucket_reduce.hpp"

#include <algorithm>
#include <limits>

#include "collective/reduce_kernel.hpp"

namespace lockstep::collective {
namespace {

using transport::kNowhere;
using transport::Place;

constexpr std::size_t kLeastChunk = 16 * 1024;
constexpr std::size_t kMostChunk = 256 * 1024;
constexpr std::size_t kChunksPerRank = 8;  // so that a rank that comes late still finds some
constexpr std::size_t kBlock = 64 * 1024;  // of another process's private memory, copied at once

class BucketReduce final : public Algorithm {
 public:
  explicit BucketReduce(Bucket bucket) : bucket_(std::move(bucket)), shared_(*bucket_.transport->shared()) {
    const auto present = std::count_if(bucket_.parties.begin(), bucket_.parties.end(),
                                       [](const Bucket::Party& party) { return party.table != nullptr; });
    const std::size_t share = bucket_.bytes / (static_cast<std::size_t>(present) * kChunksPerRank);
    chunk_ = std::clamp(share / kPartAlignment * kPartAlignment, kLeastChunk, kMostChunk);
    chunks_ = static_cast<std::uint32_t>((bucket_.bytes + chunk_ - 1) / chunk_);
    leaves_.resize(bucket_.parties.size());
  }

  bool advance() override {
    Chunks chunks(bucket_.words, bucket_.self, chunks_);
    const auto work_on_one = [&](std::uint32_t chunk) {
      worked_ = true;
      return work(chunk);
    };
    if (!chunks.do_some(shared_, kChunksAtOnce, work_on_one) || !chunks.complete()) return false;
    // Who did something may have done the last: those who sleep must hear of it.
    if (worked_) bucket_.transport->ring_everybody();
    return true;
  }

 private:
  struct Side {
    int rank;
    PartPlace place;
    std::byte* input;   // nullptr: private memory of another process
    std::byte* output;  // likewise
    std::size_t leaf;
  };

  // False when a party is gone; then the chunk stays undone, and the verdict over that party ends the operation.
  bool work(std::uint32_t chunk) {
    const std::size_t begin = chunk * chunk_;
    const std::size_t end = std::min(begin + chunk_, bucket_.bytes);
    auto part = std::upper_bound(bucket_.parts.begin(), bucket_.parts.end(), begin,
                                 [](std::size_t at, const Part& other) { return at < other.offset; });
    if (part != bucket_.parts.begin()) --part;
    for (; part != bucket_.parts.end() && part->offset < end; ++part) {
      const std::size_t from = std::max(begin, part->offset) - part->offset;
      const std::size_t to = std::min(end - part->offset, part->bytes());
      if (from < to && !work_on(static_cast<std::size_t>(part - bucket_.parts.begin()), from, to)) return false;
    }
    return true;
  }

  bool work_on(std::size_t index, std::size_t from, std::size_t to) {
    find_sides(index);
    if (sides_.empty()) return true;  // nobody has it in this step
    const bool all_here = std::all_of(sides_.begin(), sides_.end(),
                                      [](const Side& side) { return side.input != nullptr && side.output != nullptr; });
    if (all_here) return reduce_block(bucket_.parts[index], from, to - from);
    for (; from < to; from += kBlock) {
      if (!reduce_block(bucket_.parts[index], from, std::min(kBlock, to - from))) return false;
    }
    return true;
  }

  void find_sides(std::size_t index) {
    sides_.clear();
    for (std::size_t i = 0; i < bucket_.parties.size(); ++i) {
      const Bucket::Party& party = bucket_.parties[i];
      if (party.table == nullptr || party.table[index].input == kNowhere) continue;
      const PartPlace place = party.table[index];
      sides_.push_back(
          {party.rank, place, shared_.at(party.rank, place.input), shared_.at(party.rank, place.output), i});
    }
  }

  bool reduce_block(const Part& part, std::size_t offset, std::size_t bytes) {
    std::fill(leaves_.begin(), leaves_.end(), nullptr);
    outputs_.clear();
    copies_.resize(std::max(copies_.size(), sides_.size()));
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      const Side& side = sides_[i];
      if (side.input == nullptr || side.output == nullptr) copies_[i].resize(2 * kBlock);
      if (side.input == nullptr && !shared_.read(side.rank, side.place.input, offset, {copies_[i].data(), bytes})) {
        return false;
      }
      leaves_[side.leaf] = side.input != nullptr ? side.input + offset : copies_[i].data();
      outputs_.push_back(side.output != nullptr ? side.output + offset : copies_[i].data() + kBlock);
    }
    reduce({.dtype = part.dtype,
            .op = part.op,
            .leaves = leaves_,
            .outputs = outputs_,
            .elements = bytes / size_of(part.dtype),
            .divisor = part.by_contributors ? sides_.size() : bucket_.parties.size(),
            .prescale = part.prescale,
            .postscale = part.postscale});
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      const Side& side = sides_[i];
      if (side.output == nullptr && !shared_.write(side.rank, side.place.output, offset, {outputs_[i], bytes})) {
        return false;
      }
    }
    return true;
  }

  Bucket bucket_;
  transport::SharedMemory& shared_;
  std::size_t chunk_ = 0;  // bytes
  std::uint32_t chunks_ = 0;
  bool worked_ = false;
  std::vector<Side> sides_;  // those who have the part at hand
  std::vector<const std::byte*> leaves_;
  std::vector<std::byte*> outputs_;
  std::vector<std::vector<std::byte>> copies_;  // by side: a block of its input, then one of its output
};

}  // namespace

std::unique_ptr<Algorithm> make_bucket_reduce(Bucket bucket) {
  return std::make_unique<BucketReduce>(std::move(bucket));
}

}  // namespace lockstep::collective
