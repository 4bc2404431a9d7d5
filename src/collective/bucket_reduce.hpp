// All-reduce of many tensors at once, where every rank can address every tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/algorithm.hpp"
#include "collective/chunks.hpp"
#include "lockstep/types.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

/// Parts begin on lines of their own, so that no two ranks ever write to the same one.
inline constexpr std::size_t kPartAlignment = 128;

/// One tensor of a bucket, the same on all ranks.
struct Part {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  bool by_contributors = false;
  std::size_t elements = 0;
  std::size_t offset = 0;  ///< bytes from the start of the bucket; a multiple of kPartAlignment

  std::size_t bytes() const { return elements * size_of(dtype); }
};

/// Where a rank has its tensor. Each rank has a table of these, one per part, in its arena.
struct PartPlace {
  transport::Place input = transport::kNowhere;  ///< kNowhere: the rank takes no part in it
  transport::Place output = transport::kNowhere;
};

struct Bucket {
  struct Party {
    int rank = 0;
    const PartPlace* table = nullptr;  ///< nullptr: takes part in none
  };

  std::span<const Part> parts;       ///< in the order of their offsets; outlive the algorithm
  std::size_t bytes = 0;             ///< from the first part to the end of the last
  std::vector<Party> parties;        ///< in rank order: the leaves of the tree
  std::vector<Chunks::Words> words;  ///< of those parties that take part in any
  std::size_t self = 0;              ///< this rank among these
  transport::Transport* transport = nullptr;
};

std::unique_ptr<Algorithm> make_bucket_reduce(Bucket bucket);

}  // namespace lockstep::collective
