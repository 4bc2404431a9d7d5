// The one place where an algorithm is chosen.
#include "collective/algorithm.hpp"

#include <algorithm>

#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

bool is_meet(const Call& call) {
  return call.kind == Kind::barrier || call.elements == 0 || (call.kind == Kind::broadcast && call.count() == 1);
}
bool is_carried(const Call& call) {
  auto present = [](const Party& party) { return party.carried; };
  if (call.kind == Kind::broadcast) return present(call.parties[static_cast<std::size_t>(call.root)]);
  return std::all_of(call.parties.begin(), call.parties.end(), present);
}
bool is_direct(const Call& call, Kind kind) { return call.kind == kind && call.transport->shared() != nullptr; }
bool is_exchange(const Call& call, Kind kind) { return call.kind == kind && call.transport->messages() != nullptr; }

constexpr AlgorithmRow kAlgorithms[] = {
    {"meet", "no data: done when everybody has announced it", is_meet, make_meet},
    {"carried", "tiny: the data came with the notices, every rank computes the result itself", is_carried, make_carried},
    {"direct all-reduce", "shared memory: chunks are claimed, read from and written to all ranks' tensors in place",
     [](const Call& call) { return is_direct(call, Kind::all_reduce); }, make_direct_all_reduce},
    {"direct broadcast", "shared memory: every rank copies from the root's tensor",
     [](const Call& call) { return is_direct(call, Kind::broadcast); }, make_direct_broadcast},
    {"exchange all-reduce", "messages: slices to their owners, which add them in tree order and send the result to all",
     [](const Call& call) { return is_exchange(call, Kind::all_reduce); }, make_exchange_all_reduce},
    {"exchange broadcast", "messages: the root sends to every rank",
     [](const Call& call) { return is_exchange(call, Kind::broadcast); }, make_exchange_broadcast},
};

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::barrier: return "barrier";
    case Kind::all_reduce: return "all-reduce";
    case Kind::broadcast: return "broadcast";
  }
  return "unknown operation";
}

std::span<const AlgorithmRow> algorithms() { return kAlgorithms; }

std::unique_ptr<Algorithm> choose(const Call& call) {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.fits(call)) return row.make(call);
  }
  throw Error(ErrorCode::internal, std::string("no algorithm for ") + name_of(call.kind));
}

}  // namespace lockstep::collective
