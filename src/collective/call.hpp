// One operation that all its parties have announced, in the terms that algorithms need.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/epilogue.hpp"
#include "lockstep/leaves.hpp"
#include "lockstep/types.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

/// Numbers travel in notices: append, never renumber.
enum class Kind : std::int32_t {
  barrier = 0,
  all_reduce = 1,
  broadcast = 2,
  reduce = 3,
  all_gather = 4,
  gather = 5,
  scatter = 6,
  all_to_all = 7,
  reduce_scatter = 8,
  send = 9,  ///< of the pair's both sides, once matched; the sender is the root
  receive = 10,
  join = 11,
  new_group = 12,
  end_step = 13,  ///< announces that a rank submits nothing more in its step
  bucket = 14,    ///< all-reduces that travel together
};

const char* name_of(Kind kind);

/// Sums, averages and so on: every present party is a leaf of the tree.
inline bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

/// A rank that takes part, as seen from this process.
struct Party {
  int rank = 0;
  bool present = true;               ///< false: it has joined, gives nothing and gets nothing
  const std::byte* input = nullptr;  ///< readable here; nullptr when this process does not see it, or there is none
  std::byte* output = nullptr;       ///< writable here; nullptr likewise
  transport::Place input_place = transport::kNowhere;   ///< as announced; to be read from when `input` is nullptr
  transport::Place output_place = transport::kNowhere;  ///< to be written to when `output` is nullptr
  std::byte* relay = nullptr;  ///< where its owner brings its tensor, window by window (relay_pass.hpp)
  bool copied = false;         ///< `input` is a copy, which nobody overwrites with a result
  bool carried = false;        ///< `input` points into the notice itself and needs no care of its owner
  std::atomic<std::uint32_t>* scratch = nullptr;  ///< sixteen words that came with its notice, shared by all ranks
  std::int64_t rows = 0;                          ///< first dimension of its input
  const std::int64_t* splits = nullptr;           ///< all-to-all: rows for each party, when readable here
  std::int64_t first_leaf = 0;                    ///< reductions over given leaves: those that it owns
  std::int64_t leaf_count = 0;
  std::byte* workspace = nullptr;  ///< Adasum: memory of its owner's that all can read
};

struct Pack;

struct Call {
  Kind kind = Kind::barrier;
  std::uint64_t id = 0;
  DType dtype = DType::f32;
  DType result_dtype = DType::f32;  ///< of a reduction's result
  ReduceOp op = ReduceOp::sum;
  int root = -1;                  ///< index into parties
  std::size_t elements = 0;       ///< of this rank's input; of the root's where only the root gives; of one partial sum
  std::size_t row_elements = 1;   ///< elements of one row: the product of all dimensions but the first
  std::int64_t total_leaves = 0;  ///< 0: every party is a leaf and gives itself; otherwise each gives partial sums
  std::uint64_t divisor = 1;      ///< what an average divides by
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<Party> parties;  ///< in rank order
  int self = 0;                ///< index into parties
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  transport::Transport* transport = nullptr;
  /// Gives the memory for a result of that many rows: the caller's own, or new. Called once, when the number is known.
  /// Throws Error(invalid_argument) when the caller's own does not fit.
  std::function<std::byte*(std::int64_t rows)> make_output;
  Epilogue epilogue = {};                 ///< of a reduction; may be none
  const Pack* pack = nullptr;             ///< the tensors that travel as this one (pack.hpp); it outlives the call
  std::vector<ElementRange> slices = {};  ///< by party: what it owns, where that is not its owned_slice
  std::vector<std::int64_t>* received = nullptr;  ///< all-to-all: to be filled with the rows that come from each party

  std::size_t count() const { return parties.size(); }
  std::size_t bytes() const { return elements * size_of(dtype); }
  std::size_t result_bytes() const { return elements * size_of(result_dtype); }
  std::size_t row_bytes() const { return row_elements * size_of(dtype); }
  bool is_self(std::size_t index) const { return static_cast<int>(index) == self; }
  bool is_root(std::size_t index) const { return static_cast<int>(index) == root; }
  std::size_t present() const;
  const Party& first_present() const;
};

}  // namespace lockstep::collective
