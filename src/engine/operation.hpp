// One operation of one rank, from its submission to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/algorithm.hpp"
#include "collective/pack.hpp"
#include "fusion/step_end.hpp"
#include "lockstep/epilogue.hpp"
#include "lockstep/error.hpp"
#include "lockstep/leaves.hpp"
#include "lockstep/types.hpp"
#include "negotiation/groups.hpp"
#include "trace/recorder.hpp"
#include "transport/notice.hpp"

namespace lockstep::engine {

/// What a caller asks for.
struct Request {
  collective::Kind kind = collective::Kind::barrier;
  TensorView input;   ///< its name is the operation's; of partial sums, the first
  TensorView output;  ///< without memory: the engine makes it (not for reductions of a whole tensor, nor broadcasts)
  ReduceOp op = ReduceOp::sum;
  int root = -1;      ///< a rank of the world; of a pair, the sender
  int partner = -1;   ///< send and receive: the other side
  int receiver = -1;  ///< send and receive: of the two, who receives
  std::int32_t tag = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool by_contributors = false;
  std::vector<std::int64_t> splits = {};  ///< all-to-all: rows for each member of the group
  negotiation::MembersPtr group = {};     ///< nullptr: the world
  LeafRange leaves = {};                  ///< reductions over given leaves (total != 0): those that this rank owns
  std::size_t partials = 1;               ///< partial sums that follow each other at `input`
  std::optional<DType> rounded_to = {};   ///< reductions: type of the result, unless that of the input
  Epilogue epilogue = {};                 ///< reductions: may be none
  std::shared_ptr<const collective::Pack> pack = {};  ///< what it stands for, where several travel as one (packing.hpp)
  std::uint64_t pack_hash = 0;                        ///< of names, shapes and layouts in it

  DType result_dtype() const { return rounded_to.value_or(input.dtype); }
  std::size_t input_bytes() const { return partials * input.bytes(); }
  std::size_t result_bytes() const { return static_cast<std::size_t>(input.elements()) * size_of(result_dtype()); }
};

/// An all-reduce as it is asked for, before anything of it is copied.
struct Reduce {
  const TensorView* input = nullptr;
  const TensorView* output = nullptr;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  bool by_contributors = false;
  negotiation::MembersPtr group = {};  ///< nullptr: the world
  bool of_step = false;                ///< belongs to the step also where that is exclusive
};

/// Owned by the engine's Core, which also guards every field except `state`.
class Operation {
 public:
  enum class State { pending, done, failed };

  explicit Operation(Request asked) : request(std::move(asked)) {}

  bool ended() const { return state.load(std::memory_order_acquire) != State::pending; }
  bool has_failed() const { return state.load(std::memory_order_acquire) == State::failed; }

  // What a planned operation touches comes first, on few cache lines.
  std::atomic<State> state{State::pending};
  bool plannable = false;   ///< submitted by itself and not waited for, so that a bucket could hold it
  bool of_step = false;     ///< submitted as a part of the step
  bool background = false;  ///< nobody may be waiting: the engine's thread sees to it
  bool stall_reported = false;
  bool has_result = false;              ///< its algorithm is done; what it sends may still be waiting for room
  int entry = -1;                       ///< of the plan, under whose name it is
  int bucket = -1;                      ///< of the plan, with which it ends, or which it is
  std::uint64_t key = 0;                ///< of its name (name_key)
  std::uint64_t order = 0;              ///< among the operations without a name, or under this one
  fusion::Step step = fusion::kNoStep;  ///< of an operation that has a name, and was submitted inside a step
  trace::Span trace;
  std::unique_ptr<collective::Algorithm> algorithm;  ///< set once everybody has announced it
  std::optional<Error> error;                        ///< set before `state` says that it ended

  /// The result. Valid once the state says done.
  TensorView result;
  Request request;

  std::chrono::steady_clock::time_point submitted{};
  std::span<const std::byte> attached;  ///< the tensor, where it goes along with the notice
  std::byte* staged = nullptr;          ///< the tensor's copy in shared memory, when it does not live there
  std::byte* staged_result = nullptr;   ///< where in that block peers put the result
  std::byte* staged_splits = nullptr;   ///< the splits of an all-to-all there
  std::byte* workspace = nullptr;       ///< of an Adasum there
  std::vector<std::int64_t> received;   ///< all-to-all: rows from each member
  std::shared_ptr<std::byte[]> memory;  ///< what the engine made for it
  int last_joined = -1;
  transport::Notice notice;              ///< what this rank announces
  std::deque<transport::Notice> offers;  ///< what peers offered, as notices
};

}  // namespace lockstep::engine
