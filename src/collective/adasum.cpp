// Adasum where every rank can address every tensor: each rank measures its slice, and when all have, combines it and
// writes it to all outputs. What it is and how it is computed: adasum_kernel.hpp.
#include <algorithm>
#include <cstring>

#include "collective/adasum_plan.hpp"
#include "collective/algorithm.hpp"
#include "collective/reach.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPieceBlocks = 32;  // between two looks for a verdict

class Adasum final : public Algorithm {
 public:
  explicit Adasum(const Call& call)
      : call_(call),
        shared_(*call.transport->shared()),
        plan_(call_),
        reach_(call_, plan_.leaves()),
        mine_(plan_.slice(static_cast<std::size_t>(call.self))) {
    const Party& first = call_.first_present();
    std::atomic<std::uint32_t>* scratch = first.scratch;
    measured_ = &scratch[0];
    finished_ = &scratch[1];
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present) takers_.push_back(i);
    }
  }

  bool advance() override {
    if (!published_ && !measure()) return false;
    // Inputs may be outputs as well: nobody writes before all have read.
    if (measured_->load(std::memory_order_acquire) != call_.present()) return false;
    if (factors_.empty()) gather_factors();
    if (!counted_) {
      if (!combine_mine()) return false;
      counted_ = true;
      count(*finished_);
    }
    return finished_->load(std::memory_order_acquire) == call_.present();
  }

 private:
  void count(std::atomic<std::uint32_t>& counter) {
    if (counter.fetch_add(1, std::memory_order_seq_cst) + 1 == call_.present()) call_.transport->ring_everybody();
  }

  // Calls `work(offset, elements, leaves)` for the pieces of this rank's slice from `done_` on. False when the world
  // has ended, or a party is gone, which will end it.
  template <class Work>
  bool in_pieces(const Work& work) {
    const std::size_t width = size_of(call_.dtype);
    const std::size_t step = std::min(kPieceBlocks, reach_.block_bytes() / (kAdasumBlock * width)) * kAdasumBlock;
    for (; done_ < mine_.count; done_ += step) {
      const transport::Access access(&shared_);
      if (!access) return false;
      const std::size_t offset = mine_.offset + done_, elements = std::min(step, mine_.count - done_);
      const auto leaves = reach_.leaves(offset * width, elements * width);
      if (leaves.empty() || !work(offset, elements, leaves)) return false;
    }
    done_ = 0;
    return true;
  }

  bool measure() {
    const bool read = in_pieces([&](std::size_t, std::size_t elements, std::span<const std::byte* const> leaves) {
      std::vector<const std::byte*> block(leaves.begin(), leaves.end());
      for (std::size_t at = 0; at < elements; at += kAdasumBlock) {
        blocks_.push_back(gram_of_block(call_.dtype, block, std::min(kAdasumBlock, elements - at)));
        for (const std::byte*& leaf : block) leaf += kAdasumBlock * size_of(call_.dtype);
      }
      return true;
    });
    if (!read) return false;
    const std::vector<double> sums = plan_.fold(blocks_);
    if (!sums.empty()) std::memcpy(call_.parties[self()].workspace, sums.data(), sums.size() * sizeof(double));
    published_ = true;
    count(*measured_);
    return true;
  }

  void gather_factors() {
    std::vector<const double*> measured;
    for (const Party& party : call_.parties) measured.push_back(reinterpret_cast<const double*>(party.workspace));
    factors_ = plan_.factors(measured);
  }

  bool combine_mine() {
    const std::size_t width = size_of(call_.dtype);
    return in_pieces([&](std::size_t offset, std::size_t elements, std::span<const std::byte* const> leaves) {
      result_.resize(elements * width);
      combine(call_.dtype, leaves, factors_, result_.data(), elements);
      for (std::size_t taker : takers_) {
        std::memcpy(reach_.output(taker, offset * width, elements * width), result_.data(), elements * width);
        if (!reach_.deliver(taker, offset * width, elements * width)) return false;
      }
      return true;
    });
  }

  std::size_t self() const { return static_cast<std::size_t>(call_.self); }

  Call call_;
  transport::SharedMemory& shared_;
  AdasumPlan plan_;
  Reach reach_;
  ElementRange mine_;
  std::atomic<std::uint32_t>* measured_;  // ranks that have
  std::atomic<std::uint32_t>* finished_;
  std::size_t done_ = 0;  // of this rank's slice, in the pass under way
  std::vector<Gram> blocks_;
  std::vector<double> factors_;
  std::vector<std::byte> result_;
  std::vector<std::size_t> takers_;
  bool published_ = false;
  bool counted_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> make_adasum(const Call& call) { return std::make_unique<Adasum>(call); }

}  // namespace lockstep::collective
