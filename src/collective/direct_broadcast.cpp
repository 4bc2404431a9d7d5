// Broadcast where every rank can address the root's tensor: each copies it to its own, and counts itself as done.
// The root is done when all have counted; the others as soon as they have their copy.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPiece = 512 * 1024;  // between two looks for a verdict

class DirectBroadcast final : public Algorithm {
 public:
  explicit DirectBroadcast(const Call& call) : call_(call), shared_(*call.transport->shared()) {
    const Party& first = call_.parties.front();
    done_ = shared_.scratch(first.rank, first.position);
  }

  bool advance() override {
    const auto others = static_cast<std::uint32_t>(call_.count() - 1);
    if (call_.self == call_.root) return done_->load(std::memory_order_acquire) == others;
    const std::byte* from = call_.parties[static_cast<std::size_t>(call_.root)].input;
    for (; copied_ < call_.bytes(); copied_ += kPiece) {
      if (!shared_.begin_access()) return false;
      std::memcpy(call_.output + copied_, from + copied_, std::min(kPiece, call_.bytes() - copied_));
      shared_.end_access();
    }
    if (done_->fetch_add(1, std::memory_order_seq_cst) + 1 == others) call_.transport->ring_everybody();
    return true;
  }

 private:
  Call call_;
  transport::SharedMemory& shared_;
  std::atomic<std::uint32_t>* done_;
  std::size_t copied_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> make_direct_broadcast(const Call& call) { return std::make_unique<DirectBroadcast>(call); }

}  // namespace lockstep::collective
