// One operation that all its parties have announced, in the terms that algorithms need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/types.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

/// Numbers travel in notices: append, never renumber.
enum class Kind : std::int32_t { barrier = 0, all_reduce = 1, broadcast = 2 };

const char* name_of(Kind kind);

/// A rank that takes part, as seen from this process.
struct Party {
  int rank = 0;
  const std::byte* input = nullptr;  ///< readable here; nullptr when this rank's memory cannot be reached, or has none
  std::byte* output = nullptr;       ///< writable here; nullptr likewise
  bool carried = false;              ///< `input` points into the notice itself and needs no care of its owner
  std::uint64_t position = 0;        ///< of its notice
};

struct Call {
  Kind kind = Kind::barrier;
  std::uint64_t id = 0;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = -1;  ///< index into parties
  std::size_t elements = 0;
  std::vector<Party> parties;  ///< in rank order: the leaves of the tree
  int self = 0;                ///< index into parties
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  transport::Transport* transport = nullptr;

  std::size_t count() const { return parties.size(); }
  std::size_t bytes() const { return elements * size_of(dtype); }
};

}  // namespace lockstep::collective
