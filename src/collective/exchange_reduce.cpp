// All-reduce and reduce by messages: direct reduce-scatter, then the results to everybody, or to the root.
//
// The tensor is cut into one slice per rank, and slices into chunks. Each rank sends every other rank that rank's slice
// of all that it gives. As soon as a chunk of its own slice has come from everybody, a rank adds its versions in the
// fixed tree order and sends on the result, while the next chunks arrive: both directions of every connection are busy
// from the first byte to the last. The pairing of additions is that of every other algorithm.
//
// Nothing is copied on the way. What is sent is lent; results arrive where they belong. In place, the result of a chunk
// overwrites what was lent of it, which is right: its owner needed that to make the result.
#include <algorithm>
#include <memory>

#include "collective/algorithm.hpp"
#include "collective/arrivals.hpp"
#include "collective/part_reducer.hpp"
#include "collective/slice_chunks.hpp"

namespace lockstep::collective {
namespace {

constexpr std::uint32_t kWindow = 8;  // chunks of each rank that have a place before they are reduced
constexpr int kRoundsAtOnce = 8;      // before other operations get their turn

class ExchangeReduce final : public Algorithm {
 public:
  explicit ExchangeReduce(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        self_(static_cast<std::size_t>(call.self)),
        reducer_(call_),
        chunks_(call_),
        sources_(call_.count()),
        lease_(messages_, call.id) {
    if (partials_of(call_, self_) > 0) send_partials();
    output_ = takes(self_) ? call_.make_output(call_.parties[self_].rows) : nullptr;
    if (!takes(self_)) result_ = std::make_unique_for_overwrite<std::byte[]>(SliceChunks::kBytes);
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i == self_ || !call_.parties[i].present) continue;
      if (partials_of(call_, i) > 0) add_source(i);
      if (takes(self_)) add_owner(i);
    }
  }

  bool advance() override {
    bool moved = true;
    for (int round = 0; round < kRoundsAtOnce && moved; ++round) {
      moved = false;
      for (auto& source : sources_) moved |= source && source->take();
      moved |= reduce_ready();
      for (Owner& owner : owners_) moved |= take_results(owner);
    }
    return reduced_ == chunks_.count(self_) && std::all_of(owners_.begin(), owners_.end(), [&](const Owner& owner) {
             return owner.arrived == chunks_.count(owner.party);
           });
  }

 private:
  // A rank whose slice of the result this rank takes.
  struct Owner {
    std::size_t party = 0;
    std::uint32_t arrived = 0;  // chunks
  };

  static std::uint32_t partial_part(std::uint32_t chunk) { return 2 * chunk; }  // of the messages
  static std::uint32_t result_part(std::uint32_t chunk) { return 2 * chunk + 1; }

  bool takes(std::size_t index) const { return call_.kind == Kind::all_reduce || call_.is_root(index); }
  int rank_of(std::size_t index) const { return call_.parties[index].rank; }

  // Chunk by chunk to everybody, each rank beginning with its neighbour, so that no receiver has all senders at once.
  void send_partials() {
    for (std::uint32_t chunk = 0; chunk < chunks_.most(); ++chunk) {
      for (std::size_t i = 1; i < call_.count(); ++i) {
        const std::size_t receiver = (self_ + i) % call_.count();
        if (chunk < chunks_.count(receiver)) send_partial(receiver, chunk);
      }
    }
  }

  void send_partial(std::size_t receiver, std::uint32_t chunk) {
    const std::size_t width = size_of(call_.dtype), partials = partials_of(call_, self_);
    const ElementRange range = chunks_.range(receiver, chunk);
    const std::span<const std::byte> first(call_.input + range.offset * width, range.count * width);
    if (partials == 1) return messages_.lend(rank_of(receiver), call_.id, partial_part(chunk), first);
    std::vector<std::byte> packed;  // that part of each of the partial sums, one behind the other
    for (std::size_t i = 0; i < partials; ++i) {
      const std::byte* from = first.data() + i * call_.bytes();
      packed.insert(packed.end(), from, from + first.size());
    }
    messages_.send(rank_of(receiver), call_.id, partial_part(chunk), packed);
  }

  void add_source(std::size_t party) {
    const std::size_t width = size_of(call_.dtype) * partials_of(call_, party);
    sources_[party].emplace(
        messages_,
        Arrivals::Chunks{.rank = rank_of(party),
                         .operation = call_.id,
                         .count = chunks_.count(self_),
                         .most_bytes = chunks_.elements() * width,
                         .part = partial_part,
                         .bytes = [this, width](auto chunk) { return chunks_.range(self_, chunk).count * width; }},
        kWindow);
  }

  void add_owner(std::size_t party) {
    for (std::uint32_t chunk = 0; chunk < chunks_.count(party); ++chunk)
      messages_.expect(rank_of(party), call_.id, result_part(chunk), result_of(party, chunk));
    owners_.push_back({.party = party});
  }

  std::span<std::byte> result_of(std::size_t owner, std::uint32_t chunk) const {
    const std::size_t width = size_of(call_.result_dtype);
    const ElementRange range = chunks_.range(owner, chunk);
    return {output_ + range.offset * width, range.count * width};
  }

  bool take_results(Owner& owner) {
    const std::uint32_t before = owner.arrived;
    while (owner.arrived < chunks_.count(owner.party) &&
           messages_.receive(rank_of(owner.party), call_.id, result_part(owner.arrived),
                             result_of(owner.party, owner.arrived)))
      ++owner.arrived;
    return owner.arrived != before;
  }

  bool reduce_ready() {
    std::uint32_t ready = chunks_.count(self_);
    for (const auto& source : sources_) ready = source ? std::min(ready, source->arrived()) : ready;
    const bool any = reduced_ < ready;
    for (; reduced_ < ready; ++reduced_) reduce_chunk(reduced_);
    return any;
  }

  void reduce_chunk(std::uint32_t chunk) {
    const ElementRange range = chunks_.range(self_, chunk);
    std::byte* target = takes(self_) ? result_of(self_, chunk).data() : result_.get();
    reducer_.reduce(range.offset, range.count, leaves_of(chunk), {&target, 1});
    for (auto& source : sources_) {
      if (source) source->use_up();
    }
    const std::span<const std::byte> result(target, range.count * size_of(call_.result_dtype));
    for (std::size_t i = 1; i < call_.count(); ++i) {
      const std::size_t taker = (self_ + i) % call_.count();
      if (!call_.parties[taker].present || !takes(taker)) continue;
      if (takes(self_)) {
        messages_.lend(rank_of(taker), call_.id, result_part(chunk), result);
      } else {
        messages_.send(rank_of(taker), call_.id, result_part(chunk), result);
      }
    }
  }

  std::span<const std::byte* const> leaves_of(std::uint32_t chunk) {
    const std::size_t width = size_of(call_.dtype);
    const ElementRange range = chunks_.range(self_, chunk);
    leaves_.clear();
    for (const LeafTable::Entry& entry : reducer_.leaves().entries()) {
      leaves_.push_back(entry.party == self_
                            ? call_.input + entry.offset + range.offset * width
                            : sources_[entry.party]->at(chunk).data() + entry.partial * range.count * width);
    }
    return leaves_;
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  PartReducer reducer_;
  SliceChunks chunks_;
  std::vector<std::optional<Arrivals>> sources_;  // by party: of this rank's slice
  std::vector<Owner> owners_;
  std::vector<const std::byte*> leaves_;
  std::byte* output_ = nullptr;
  std::unique_ptr<std::byte[]> result_;  // of a chunk, where this rank does not take it
  std::uint32_t reduced_ = 0;            // chunks
  transport::MessageLease lease_;        // the last: it ends before the memory where messages are expected
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_reduce(const Call& call) { return std::make_unique<ExchangeReduce>(call); }

}  // namespace lockstep::collective
