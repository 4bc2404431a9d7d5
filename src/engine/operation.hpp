// One operation of one rank, from its submission to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "collective/algorithm.hpp"
#include "lockstep/error.hpp"
#include "lockstep/types.hpp"
#include "transport/notice.hpp"

namespace lockstep::engine {

/// What a caller asks for.
struct Request {
  collective::Kind kind = collective::Kind::barrier;
  TensorView input;   ///< its name is the operation's
  TensorView output;  ///< same shape as the input; the same memory when in place
  ReduceOp op = ReduceOp::sum;
  int root = -1;
};

/// Owned by the engine's Core, which also guards every field except `state`.
class Operation {
 public:
  enum class State { pending, done, failed };

  explicit Operation(Request asked) : request(std::move(asked)) {}

  const Request request;
  std::uint64_t order = 0;       ///< among the operations without a name
  bool background = false;       ///< nobody may be waiting: the engine's thread sees to it
  transport::Notice notice;      ///< what this rank announces
  std::byte* staged = nullptr;   ///< the tensor's copy in shared memory, when it does not live there
  std::unique_ptr<collective::Algorithm> algorithm;  ///< set once everybody has announced it
  std::chrono::steady_clock::time_point submitted{};
  bool stall_reported = false;

  bool ended() const { return state.load(std::memory_order_acquire) != State::pending; }

  /// Set before `state` says that it ended.
  std::optional<Error> error;
  std::atomic<State> state{State::pending};
};

}  // namespace lockstep::engine
