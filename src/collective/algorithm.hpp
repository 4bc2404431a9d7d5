// The second extension point: how an operation is carried out once everybody has announced it.
//
// An algorithm never waits. `advance` does what can be done now and says whether the operation is complete for this
// rank: its result is in place, and no peer will touch its tensors for this operation again. It may throw an Error,
// which then ends the operation.
#pragma once

#include <memory>
#include <span>

#include "collective/call.hpp"

namespace lockstep::collective {

class Algorithm {
 public:
  virtual ~Algorithm() = default;
  virtual bool advance() = 0;
};

struct AlgorithmRow {
  const char* name;
  const char* what;
  bool (*fits)(const Call&);
  std::unique_ptr<Algorithm> (*make)(const Call&);
};

/// In order of preference; the first row that fits is taken.
std::span<const AlgorithmRow> algorithms();

std::unique_ptr<Algorithm> choose(const Call& call);

// One function per file of this folder.
std::unique_ptr<Algorithm> make_meet(const Call& call);
std::unique_ptr<Algorithm> make_pull(const Call& call);
std::unique_ptr<Algorithm> make_direct_reduce(const Call& call);
std::unique_ptr<Algorithm> make_relay_reduce(const Call& call);
std::unique_ptr<Algorithm> make_sliced_reduce(const Call& call);
std::unique_ptr<Algorithm> make_packed_reduce(const Call& call);
std::unique_ptr<Algorithm> make_exchange_reduce(const Call& call);
std::unique_ptr<Algorithm> make_host_reduce(const Call& call);

/// Whether several hosts have ranks, one of them several, and sums of a host can be sent without loss.
bool fits_host_reduce(const Call& call);
std::unique_ptr<Algorithm> make_adasum(const Call& call);
std::unique_ptr<Algorithm> make_exchange_adasum(const Call& call);
std::unique_ptr<Algorithm> make_push(const Call& call);

}  // namespace lockstep::collective
