// Every rank fetches its own result from the others' inputs, where those can be read: in shared memory, or in the
// notices that carried them. It writes only to its own memory, which may therefore be private.
//
// A rank whose input is read by others is done when all have counted themselves as finished; the rest as soon as they
// have their result. What came with a notice needs no counting: the notice stays until it is released.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/reduce_kernel.hpp"
#include "collective/routes.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPiece = 512 * 1024;  // bytes between two looks for a verdict

class Pull final : public Algorithm {
 public:
  explicit Pull(const Call& call)
      : call_(call), self_(static_cast<std::size_t>(call.self)), shared_(call.transport->shared()) {
    settle_splits(call_);
    bool counted = false;
    for (std::size_t i = 0; i < call_.count(); ++i) counted |= gives(call_, i) && !call_.parties[i].carried;
    if (counted && shared_ != nullptr) {
      const Party& first = call_.first_present();
      finished_ = shared_->scratch(first.rank, first.position);
    }
    try {
      output_ = call_.make_output(result_rows(call_));
    } catch (const Error&) {
      count_as_finished();  // an unusable output is this rank's problem alone
      throw;
    }
  }

  bool advance() override {
    if (!fetched_) {
      if (!(is_reduction(call_.kind) ? fetch_reduced() : fetch())) return false;
      fetched_ = true;
      count_as_finished();
    }
    const bool read_by_others = finished_ != nullptr && gives(call_, self_);
    return !read_by_others || finished_->load(std::memory_order_acquire) == call_.present();
  }

 private:
  void count_as_finished() {
    if (finished_ == nullptr) return;
    if (finished_->fetch_add(1, std::memory_order_seq_cst) + 1 == call_.present()) call_.transport->ring_everybody();
  }

  // False when the world has ended meanwhile.
  template <class Copy>
  bool in_pieces(std::size_t bytes, const Copy& copy) {
    for (std::size_t at = 0; at < bytes; at += kPiece) {
      if (shared_ != nullptr && !shared_->begin_access()) return false;
      copy(at, std::min(kPiece, bytes - at));
      if (shared_ != nullptr) shared_->end_access();
    }
    return true;
  }

  bool fetch() {
    for (std::size_t source = 0; source < call_.count(); ++source) {
      const Route way = route(call_, source, self_);
      const std::byte* from = call_.parties[source].input + way.from;
      std::byte* to = output_ + way.to;
      if (way.bytes == 0 || from == to) continue;
      if (!in_pieces(way.bytes, [&](std::size_t at, std::size_t bytes) { std::memcpy(to + at, from + at, bytes); }))
        return false;
    }
    return true;
  }

  bool fetch_reduced() {
    const Route way = route(call_, self_, self_);
    std::vector<const std::byte*> leaves(call_.count(), nullptr);
    return in_pieces(way.bytes, [&](std::size_t at, std::size_t bytes) {
      for (std::size_t i = 0; i < call_.count(); ++i) {
        if (call_.parties[i].present) leaves[i] = call_.parties[i].input + way.from + at;
      }
      std::byte* target = output_ + way.to + at;
      reduce({.dtype = call_.dtype,
              .op = call_.op,
              .leaves = leaves,
              .outputs = {&target, 1},
              .elements = bytes / size_of(call_.dtype),
              .divisor = call_.divisor,
              .prescale = call_.prescale,
              .postscale = call_.postscale});
    });
  }

  Call call_;
  std::size_t self_;
  transport::SharedMemory* shared_;
  std::byte* output_ = nullptr;
  std::atomic<std::uint32_t>* finished_ = nullptr;
  bool fetched_ = false;
};

}  // namespace

std::unique_ptr<Algorithm> make_pull(const Call& call) { return std::make_unique<Pull>(call); }

}  // namespace lockstep::collective
