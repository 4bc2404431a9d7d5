// All-reduce by messages where several ranks share a host: what belongs together is added up inside a host before it
// goes through the network, and the result comes into a host once (host_plan.hpp).
//
// Of each chunk of a slice:
//     rank       -> its owner, or the collector in its host     what it gives      stage 0
//     collector  -> owner                                        sums of the host   stage 1
//     owner      -> ranks of its host, and other collectors      the result         stage 2
//     collector  -> ranks of its host                            the result         stage 2
//
// So with h hosts of as many ranks, 2 (h-1)/h of the tensor's bytes go through a host's port in each direction, and
// every rank of a host has its share of that. An epilogue is called by the owner, before it sends the result. As in
// exchange_reduce.cpp, all stages are under way at once, and what is sent from a tensor is lent: its result comes only
// after it has been used.
#include <algorithm>
#include <memory>

#include "collective/algorithm.hpp"
#include "collective/arrivals.hpp"
#include "collective/host_plan.hpp"
#include "collective/part_reducer.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/slice_chunks.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPlacesBytes = 16 << 20;  // for chunks before they are added up, about
constexpr int kTurnsAtOnce = 8;                 // before other operations get their turn

class HostReduce final : public Algorithm {
 public:
  explicit HostReduce(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        self_(static_cast<std::size_t>(call.self)),
        plan_(call_),
        chunks_(call_),
        sum_type_(partial_type(call.dtype)),
        host_(plan_.host_of(self_)),
        lease_(messages_, call.id) {
    find_junctions();
    give_all();
    output_ = call_.make_output(call_.parties[self_].rows);
    for (Junction& junction : junctions_) open(junction);
    for (std::size_t owner = 0; owner < call_.count(); ++owner) {
      if (owner != self_ && call_.parties[owner].present) await_result(owner);
    }
  }

  bool advance() override {
    bool moved = true;
    for (int turn = 0; turn < kTurnsAtOnce && moved; ++turn) {
      moved = false;
      for (Junction& junction : junctions_) moved |= work_on(junction);
      for (Result& result : results_) moved |= take(result);
    }
    const auto is_done = [&](const auto& one) { return one.done == chunks_.count(one.owner); };
    return std::all_of(junctions_.begin(), junctions_.end(), is_done) &&
           std::all_of(results_.begin(), results_.end(), is_done);
  }

 private:
  // A slice that this rank collects in its host. Its own comes from the collectors of the other hosts too.
  struct Junction {
    std::size_t owner = 0;
    std::vector<std::unique_ptr<Arrivals>> members = {};  // by place among the host's members; none for this rank
    std::vector<std::unique_ptr<Arrivals>> hosts = {};    // by host; of an owner, none for its own
    std::uint32_t done = 0;                               // chunks
  };

  // A slice whose result comes from another rank.
  struct Result {
    std::size_t owner = 0;
    std::size_t from = 0;  // party
    bool passed_on = false;
    std::uint32_t done = 0;  // chunks
  };

  static constexpr std::uint32_t kGiven = 0, kSums = 1, kResult = 2, kStages = 3;

  std::uint32_t part(std::size_t owner, std::uint32_t chunk, std::uint32_t stage) const {
    return kStages * chunks_.number(owner, chunk) + stage;
  }
  int rank_of(std::size_t party) const { return call_.parties[party].rank; }
  const std::vector<std::size_t>& members() const { return plan_.members(host_); }

  // Who in this rank's host gets what its ranks give to that slice.
  std::size_t collector_here(std::size_t owner) const {
    return plan_.share_host(self_, owner) ? owner : plan_.collector(host_, owner);
  }

  std::span<const std::byte> own_input(std::size_t owner, std::uint32_t chunk) const {
    const ElementRange range = chunks_.range(owner, chunk);
    const std::size_t width = size_of(call_.dtype);
    return {call_.input + range.offset * width, range.count * width};
  }

  std::span<std::byte> result_place(std::size_t owner, std::uint32_t chunk) const {
    const ElementRange range = chunks_.range(owner, chunk);
    const std::size_t width = size_of(call_.result_dtype);
    return {output_ + range.offset * width, range.count * width};
  }

  std::size_t bytes_of_sums(std::size_t host, std::size_t elements) const {
    return plan_.blocks_of(host).size() * elements * size_of(sum_type_);
  }

  void find_junctions() {
    for (std::size_t owner = 0; owner < call_.count(); ++owner) {
      if (call_.parties[owner].present && collector_here(owner) == self_) junctions_.push_back({.owner = owner});
    }
  }

  // Chunk by chunk to everybody, each rank beginning with its neighbour.
  void give_all() {
    for (std::uint32_t chunk = 0; chunk < chunks_.most(); ++chunk) {
      for (std::size_t i = 1; i < call_.count(); ++i) {
        const std::size_t owner = (self_ + i) % call_.count();
        if (chunk >= chunks_.count(owner) || collector_here(owner) == self_) continue;
        messages_.lend(rank_of(collector_here(owner)), call_.id, part(owner, chunk, kGiven), own_input(owner, chunk));
      }
    }
  }

  void open(Junction& junction) {
    const std::size_t owner = junction.owner, elements = chunks_.elements();
    for (const std::size_t member : members()) {
      junction.members.push_back(member == self_ ? nullptr
                                                 : arrivals(member, owner, kGiven, elements * size_of(call_.dtype)));
    }
    sums_.resize(std::max(sums_.size(), bytes_of_sums(host_, elements)));
    if (owner != self_) return;
    for (std::size_t host = 0; host < plan_.hosts(); ++host) {
      junction.hosts.push_back(
          host == host_ ? nullptr
                        : arrivals(plan_.collector(host, owner), owner, kSums, bytes_of_sums(host, elements)));
    }
  }

  // Chunks of a slice from one rank; `bytes`: of a full one.
  std::unique_ptr<Arrivals> arrivals(std::size_t from, std::size_t owner, std::uint32_t stage, std::size_t bytes) {
    const std::size_t sources = junctions_.size() * members().size() + plan_.hosts();
    const std::size_t window = std::clamp<std::size_t>(kPlacesBytes / (bytes * sources), 2, 8);
    const std::size_t each = bytes / chunks_.elements();
    return std::make_unique<Arrivals>(
        messages_,
        Arrivals::Chunks{.rank = rank_of(from),
                         .operation = call_.id,
                         .count = chunks_.count(owner),
                         .most_bytes = bytes,
                         .part = [this, owner, stage](auto chunk) { return part(owner, chunk, stage); },
                         .bytes = [this, owner, each](auto chunk) { return chunks_.range(owner, chunk).count * each; }},
        static_cast<std::uint32_t>(window));
  }

  void await_result(std::size_t owner) {
    const bool passed_on = !plan_.share_host(self_, owner) && collector_here(owner) == self_;
    const std::size_t from = passed_on ? owner : collector_here(owner);
    for (std::uint32_t chunk = 0; chunk < chunks_.count(owner); ++chunk)
      messages_.expect(rank_of(from), call_.id, part(owner, chunk, kResult), result_place(owner, chunk));
    results_.push_back({.owner = owner, .from = from, .passed_on = passed_on});
  }

  bool work_on(Junction& junction) {
    const std::uint32_t before = junction.done;
    std::uint32_t ready = chunks_.count(junction.owner);
    for (const auto* sources : {&junction.members, &junction.hosts}) {
      for (const auto& source : *sources) {
        if (!source) continue;
        source->take();
        ready = std::min(ready, source->arrived());
      }
    }
    for (; junction.done < ready; ++junction.done) {
      add_up_host(junction);
      junction.owner == self_ ? finish_chunk(junction) : send_sums(junction);
      for (const auto* sources : {&junction.members, &junction.hosts}) {
        for (const auto& source : *sources) {
          if (source) source->use_up();
        }
      }
    }
    return junction.done != before;
  }

  // The sums of this host, one behind the other.
  void add_up_host(const Junction& junction) {
    const std::size_t elements = chunks_.range(junction.owner, junction.done).count;
    std::byte* sum = sums_.data();
    for (const std::size_t number : plan_.blocks_of(host_)) {
      const HostPlan::Block& block = plan_.blocks()[number];
      leaves_.clear();
      for (const std::size_t party : block.parties) leaves_.push_back(leaf_of(junction, party));
      reduce({.dtype = call_.dtype,
              .result_dtype = sum_type_,
              .op = call_.op == ReduceOp::average ? ReduceOp::sum : call_.op,
              .leaves = leaves_,
              .numbers = block.numbers,
              .total = block.count,
              .outputs = {&sum, 1},
              .elements = elements,
              .prescale = call_.prescale});
      sum += elements * size_of(sum_type_);
    }
  }

  const std::byte* leaf_of(const Junction& junction, std::size_t party) const {
    if (party == self_) return own_input(junction.owner, junction.done).data();
    const auto place = std::find(members().begin(), members().end(), party) - members().begin();
    return junction.members[static_cast<std::size_t>(place)]->at(junction.done).data();
  }

  void send_sums(const Junction& junction) {
    const std::size_t bytes = bytes_of_sums(host_, chunks_.range(junction.owner, junction.done).count);
    messages_.send(rank_of(junction.owner), call_.id, part(junction.owner, junction.done, kSums),
                   std::span(sums_).first(bytes));
  }

  // Of this rank's own slice: joins the sums of all hosts.
  void finish_chunk(const Junction& junction) {
    const ElementRange range = chunks_.range(self_, junction.done);
    const std::size_t sum_bytes = range.count * size_of(sum_type_);
    std::vector<std::size_t> used(plan_.hosts());  // blocks of each host
    leaves_.clear();
    for (const HostPlan::Block& block : plan_.blocks()) {
      const std::byte* sums = block.host == host_ ? sums_.data() : junction.hosts[block.host]->at(junction.done).data();
      leaves_.push_back(sums + used[block.host]++ * sum_bytes);
    }
    const std::span<std::byte> result = result_place(self_, junction.done);
    std::byte* target = result.data();
    const Reduction reduction{.dtype = sum_type_,
                              .result_dtype = call_.result_dtype,
                              .op = call_.op,
                              .leaves = leaves_,
                              .numbers = plan_.numbers(),
                              .total = call_.count(),
                              .outputs = {&target, 1},
                              .elements = range.count,
                              .divisor = call_.divisor,
                              .postscale = call_.postscale};
    call_.epilogue ? reduce_with_epilogue(call_, range.offset, reduction, epilogue_buffer_) : reduce(reduction);
    for (std::size_t host = 0; host < plan_.hosts(); ++host) {
      if (host != host_) lend_result(plan_.collector(host, self_), self_, junction.done);
    }
    spread(self_, junction.done);
  }

  void lend_result(std::size_t to, std::size_t owner, std::uint32_t chunk) {
    messages_.lend(rank_of(to), call_.id, part(owner, chunk, kResult), result_place(owner, chunk));
  }

  void spread(std::size_t owner, std::uint32_t chunk) {
    for (const std::size_t member : members()) {
      if (member != self_) lend_result(member, owner, chunk);
    }
  }

  bool take(Result& result) {
    const std::uint32_t before = result.done;
    while (result.done < chunks_.count(result.owner) &&
           messages_.receive(rank_of(result.from), call_.id, part(result.owner, result.done, kResult),
                             result_place(result.owner, result.done))) {
      if (result.passed_on) spread(result.owner, result.done);
      ++result.done;
    }
    return result.done != before;
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  HostPlan plan_;
  SliceChunks chunks_;
  DType sum_type_;
  std::size_t host_;
  std::vector<Junction> junctions_;
  std::vector<Result> results_;
  std::vector<std::byte> sums_;  // of this host, of one chunk
  std::vector<std::byte> epilogue_buffer_;
  std::vector<const std::byte*> leaves_;
  std::byte* output_ = nullptr;
  transport::MessageLease lease_;  // the last: it ends before the memory where messages are expected
};

}  // namespace

// Integers are averaged and scaled in a wider type than they have, which sums of a host would have to be sent in.
bool fits_host_reduce(const Call& call) {
  const bool is_float = partial_type(call.dtype) != call.dtype || call.dtype == DType::f32 || call.dtype == DType::f64;
  if (call.kind != Kind::all_reduce || call.total_leaves != 0) return false;
  if (!is_float && (call.op == ReduceOp::average || call.prescale != 1.0 || call.postscale != 1.0)) return false;
  if (!converts(partial_type(call.dtype), call.result_dtype)) return false;
  const HostPlan plan(call);
  return plan.hosts() > 1 && plan.hosts() < call.present();
}

std::unique_ptr<Algorithm> make_host_reduce(const Call& call) { return std::make_unique<HostReduce>(call); }

}  // namespace lockstep::collective
