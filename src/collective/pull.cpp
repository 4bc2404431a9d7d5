// Every rank fetches its own result from the others' inputs, where those can be read: in shared memory, or in the
// notices that carried them. It writes only to its own memory, which may therefore be private.
//
// A rank whose input is read by others is done when all have counted themselves as finished; the rest as soon as they
// have their result. What came with a notice needs no counting: the notice stays until it is released.
#include <algorithm>
#include <cstring>
#include <optional>

#include "collective/algorithm.hpp"
#include "collective/part_reducer.hpp"
#include "collective/reach.hpp"
#include "collective/routes.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

constexpr std::size_t kPiece = 512 * 1024;  // bytes between two looks for a verdict

class Pull final : public Algorithm {
 public:
  explicit Pull(const Call& call)
      : call_(call),
        self_(static_cast<std::size_t>(call.self)),
        shared_(call.transport->shared()),
        reducer_(call_),
        reach_(call_, reducer_.leaves()) {
    bool counted = false;
    for (std::size_t i = 0; i < call_.count(); ++i) counted |= gives(call_, i) && !call_.parties[i].carried;
    if (counted && shared_ != nullptr) {
      const Party& first = call_.first_present();
      finished_ = first.scratch;
    }
    try {
      settle_splits(call_);
      output_ = call_.make_output(result_rows(call_));
    } catch (const Error& error) {
      // This rank takes nothing, but others may still be reading what it gives: it ends with them.
      problem_ = error;
      fetched_ = true;
      count_as_finished();
    }
  }

  bool advance() override {
    if (!fetched_) {
      if (!(is_reduction(call_.kind) ? fetch_reduced() : fetch())) return false;
      fetched_ = true;
      count_as_finished();
    }
    const bool read_by_others = finished_ != nullptr && gives(call_, self_);
    if (read_by_others && finished_->load(std::memory_order_acquire) != call_.present()) return false;
    if (problem_) throw *problem_;
    return true;
  }

 private:
  void count_as_finished() {
    if (finished_ == nullptr) return;
    if (finished_->fetch_add(1, std::memory_order_seq_cst) + 1 == call_.present()) call_.transport->ring_everybody();
  }

  // False when the world has ended meanwhile, or a party is gone, which will end it.
  template <class Copy>
  bool in_pieces(std::size_t bytes, const Copy& copy) {
    const std::size_t piece = std::min(kPiece, reach_.block_bytes());
    for (std::size_t at = 0; at < bytes; at += piece) {
      const transport::Access access(shared_);
      if (!access || !copy(at, std::min(piece, bytes - at))) return false;
    }
    return true;
  }

  bool fetch() {
    for (std::size_t source = 0; source < call_.count(); ++source) {
      const Route way = route(call_, source, self_);
      std::byte* to = output_ + way.to;
      if (way.bytes == 0 || call_.parties[source].input + way.from == to) continue;
      const bool fetched = in_pieces(way.bytes, [&](std::size_t at, std::size_t bytes) {
        if (call_.parties[source].input == nullptr) {
          const Party& party = call_.parties[source];
          return shared_->read(party.rank, party.input_place, way.from + at, {to + at, bytes});
        }
        std::memcpy(to + at, call_.parties[source].input + way.from + at, bytes);
        return true;
      });
      if (!fetched) return false;
    }
    return true;
  }

  bool fetch_reduced() {
    const Route way = route(call_, self_, self_);
    const std::size_t width = size_of(call_.dtype);
    return in_pieces(way.bytes, [&](std::size_t at, std::size_t bytes) {
      const auto leaves = reach_.leaves(way.from + at, bytes);
      if (leaves.empty()) return false;
      std::byte* target = output_ + at / width * size_of(call_.result_dtype);
      reducer_.reduce((way.from + at) / width, bytes / width, leaves, {&target, 1});
      return true;
    });
  }

  Call call_;
  std::size_t self_;
  transport::SharedMemory* shared_;
  PartReducer reducer_;
  Reach reach_;
  std::byte* output_ = nullptr;
  std::atomic<std::uint32_t>* finished_ = nullptr;
  bool fetched_ = false;
  std::optional<Error> problem_;
};

}  // namespace

std::unique_ptr<Algorithm> make_pull(const Call& call) { return std::make_unique<Pull>(call); }

}  // namespace lockstep::collective
