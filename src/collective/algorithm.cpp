// The one place where an algorithm is chosen.
#include "collective/algorithm.hpp"

#include <algorithm>

#include "collective/routes.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

bool is_meet(const Call& call) {
  return call.kind == Kind::barrier || call.kind == Kind::join || call.kind == Kind::new_group ||
         call.kind == Kind::end_step;
}

// Nobody's input can be overwritten by a result: it came with the notices, is a copy, or there is none.
bool is_copied(const Call& call) {
  if (call.kind == Kind::all_to_all || (call.epilogue && call.elements > 0)) return false;
  for (std::size_t i = 0; i < call.count(); ++i) {
    if (gives(call, i) && !call.parties[i].copied &&
        call.parties[i].rows * static_cast<std::int64_t>(call.row_elements) > 0)
      return false;
  }
  return true;
}
bool is_whole_reduction(const Call& call) { return call.kind == Kind::all_reduce || call.kind == Kind::reduce; }

bool is_adasum(const Call& call) { return is_whole_reduction(call) && call.op == ReduceOp::adasum; }

bool is_relayed(const Call& call) {
  return std::any_of(call.parties.begin(), call.parties.end(),
                     [](const Party& party) { return party.relay != nullptr; });
}

constexpr AlgorithmRow kAlgorithms[] = {
    {"meet", "no data: done when everybody has announced it", is_meet, make_meet},
    {"packed reduce", "messages, with an epilogue: small tensors of a call are reduced as if they were one",
     [](const Call& call) { return call.pack != nullptr; }, make_packed_reduce},
    {"one shot", "small: every rank computes its result itself from copies that are at hand", is_copied, make_pull},
    {"adasum", "shared memory: each rank measures its slice, then combines it for all",
     [](const Call& call) { return call.transport->shared() != nullptr && is_adasum(call); }, make_adasum},
    {"exchange adasum", "messages: slices to their owners, which measure and then combine them",
     [](const Call& call) { return call.transport->messages() != nullptr && is_adasum(call); }, make_exchange_adasum},
    {"sliced reduce", "shared memory, with an epilogue: each rank reduces the slice that it owns",
     [](const Call& call) { return call.transport->shared() != nullptr && is_whole_reduction(call) && call.epilogue; },
     make_sliced_reduce},
    {"relay reduce", "shared memory, tensors outside it: owners bring and fetch them, window by window", is_relayed,
     make_relay_reduce},
    {"direct reduce", "shared memory: chunks are claimed, read from and written to all ranks' tensors in place",
     [](const Call& call) { return call.transport->shared() != nullptr && is_whole_reduction(call); },
     make_direct_reduce},
    {"pull", "shared memory: every rank reads what it is to get from the others' tensors",
     [](const Call& call) { return call.transport->shared() != nullptr; }, make_pull},
    {"host reduce", "messages, several ranks in a host: added up there first, so little goes through the network",
     [](const Call& call) { return call.transport->messages() != nullptr && fits_host_reduce(call); },
     make_host_reduce},
    {"exchange reduce", "messages: slices to their owners, which add them in tree order and send on the result",
     [](const Call& call) { return call.transport->messages() != nullptr && is_whole_reduction(call); },
     make_exchange_reduce},
    {"push", "messages: every rank sends to the others what they are to get",
     [](const Call& call) { return call.transport->messages() != nullptr; }, make_push},
};

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::barrier:
      return "barrier";
    case Kind::all_reduce:
      return "all-reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::reduce:
      return "reduce";
    case Kind::all_gather:
      return "all-gather";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::all_to_all:
      return "all-to-all";
    case Kind::reduce_scatter:
      return "reduce-scatter";
    case Kind::send:
      return "send";
    case Kind::receive:
      return "receive";
    case Kind::join:
      return "join";
    case Kind::new_group:
      return "new group";
    case Kind::end_step:
      return "end of step";
    case Kind::bucket:
      return "bucket";
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
