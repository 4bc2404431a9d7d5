// Every rank sends to each other rank what that one is to get. All-to-all sends its splits first, because only the
// sender knows them.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/part_reducer.hpp"
#include "collective/routes.hpp"

namespace lockstep::collective {
namespace {

constexpr std::uint32_t kSplits = 0;  // message parts
constexpr std::uint32_t kData = 1;

class Push final : public Algorithm {
 public:
  explicit Push(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        self_(static_cast<std::size_t>(call.self)),
        reducer_(call_),
        lease_(messages_, call.id) {
    if (call_.kind != Kind::all_to_all) {
      start();
      return;
    }
    const std::span<const std::int64_t> mine(call_.parties[self_].splits, call_.count());
    splits_.resize(call_.count(), std::vector<std::int64_t>(call_.count()));
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i == self_ || !call_.parties[i].present) continue;
      messages_.send(call_.parties[i].rank, call_.id, kSplits, std::as_bytes(mine));
      awaited_.push_back(i);
    }
  }

  bool advance() override {
    if (!started_) {
      std::erase_if(awaited_, [&](std::size_t i) {
        if (!messages_.receive(call_.parties[i].rank, call_.id, kSplits, std::as_writable_bytes(std::span(splits_[i]))))
          return false;
        call_.parties[i].splits = splits_[i].data();
        return true;
      });
      if (!awaited_.empty()) return false;
      start();
    }
    std::erase_if(awaited_, [&](std::size_t i) {
      return messages_.receive(call_.parties[i].rank, call_.id, kData, target_for(i));
    });
    if (!awaited_.empty()) return false;
    if (is_reduction(call_.kind)) reduce_arrived();
    return true;
  }

 private:
  void start() {
    started_ = true;
    settle_splits(call_);
    // First what others wait for: if the output is unusable, that is this rank's problem alone.
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (i != self_) give_to(i);
    }
    output_ = call_.make_output(result_rows(call_));
    if (is_reduction(call_.kind)) arrived_.resize(call_.count());
    for (std::size_t i = 0; i < call_.count(); ++i) take_from(i);
  }

  void give_to(std::size_t destination) {
    const Route way = route(call_, self_, destination);
    if (way.bytes == 0 || call_.parties[self_].carried) return;
    const int rank = call_.parties[destination].rank;
    if (is_reduction(call_.kind) && partials_of(call_, self_) != 1) {
      messages_.send(rank, call_.id, kData, parts_of_partials(way));
    } else {
      messages_.lend(rank, call_.id, kData, {call_.input + way.from, way.bytes});
    }
  }

  // That part of each of this rank's partial sums, one behind the other.
  std::vector<std::byte> parts_of_partials(const Route& way) const {
    std::vector<std::byte> packed;
    for (std::size_t i = 0; i < partials_of(call_, self_); ++i) {
      const std::byte* from = call_.input + i * call_.bytes() + way.from;
      packed.insert(packed.end(), from, from + way.bytes);
    }
    return packed;
  }

  // What is here already is put in place; the rest is awaited.
  void take_from(std::size_t source) {
    const Route way = route(call_, source, self_);
    if (way.bytes == 0) return;
    if (is_reduction(call_.kind)) {
      if (source == self_) {
        arrived_[source] = parts_of_partials(way);
        return;
      }
      arrived_[source].resize(way.bytes * partials_of(call_, source));
    }
    const std::byte* here = source == self_                 ? call_.input
                            : call_.parties[source].carried ? call_.parties[source].input
                                                            : nullptr;
    if (here == nullptr) {
      awaited_.push_back(source);
      messages_.expect(call_.parties[source].rank, call_.id, kData, target_for(source));
    } else if (std::byte* to = target_for(source).data(); to != here + way.from) {
      std::memcpy(to, here + way.from, way.bytes);
    }
  }

  std::span<std::byte> target_for(std::size_t source) {
    if (is_reduction(call_.kind)) return arrived_[source];
    const Route way = route(call_, source, self_);
    return {output_ + way.to, way.bytes};
  }

  void reduce_arrived() {
    const Route way = route(call_, self_, self_);
    if (way.bytes == 0) return;
    std::vector<const std::byte*> leaves;
    for (const LeafTable::Entry& entry : reducer_.leaves().entries()) {
      leaves.push_back(arrived_[entry.party].data() + entry.partial * way.bytes);
    }
    const std::size_t width = size_of(call_.dtype);
    reducer_.reduce(way.from / width, way.bytes / width, leaves, {&output_, 1});
  }

  Call call_;
  transport::Messages& messages_;
  std::size_t self_;
  PartReducer reducer_;
  std::vector<std::vector<std::int64_t>> splits_;  // of the others
  std::vector<std::vector<std::byte>> arrived_;    // for reductions
  std::vector<std::size_t> awaited_;
  std::byte* output_ = nullptr;
  bool started_ = false;
  transport::MessageLease lease_;  // the last: it ends before the memory where messages are expected
};

}  // namespace

std::unique_ptr<Algorithm> make_push(const Call& call) { return std::make_unique<Push>(call); }

}  // namespace lockstep::collective
