// The short cut for tiny blocking operations, which is what a loss, a flag or a barrier is.
//
// Nothing else is under way, so there is nothing to queue and nothing to look up: the notice is written on the stack
// and posted, the peers' notices are read as they come, and the result is computed from them. What is not the expected
// answer at once (a peer that is late, other operations, disagreement) is handed over to the ordinary way, as if the
// operation had been submitted there.
#include <cstring>
#include <vector>

#include "collective/reduce_kernel.hpp"
#include "engine/core.hpp"
#include "engine/patience.hpp"
#include "engine/request.hpp"
#include "engine/staging.hpp"

namespace lockstep::engine {

using collective::Kind;
using transport::NoticeRef;

struct Core::Express {
  transport::Notice notice;
  std::uint64_t order = 0;
  std::uint64_t position = 0;
  std::vector<NoticeRef> arrivals;  // by rank
  trace::Span trace;
};

void Core::run_to_end(Request request) {
  if (!request.group) request.group = groups_.world();
  OperationPtr operation;
  {
    std::lock_guard lock(mutex_);
    refuse_if_unusable();
    if (is_express(request)) {
      check_request(request, transport_->rank());
      operation = try_express(request);
      if (!operation) return;
    }
  }
  if (!operation) operation = submit(std::move(request), /*background=*/false);
  wait(*operation);
  check(*operation);
}

bool Core::is_express(const Request& request) const {
  if (crowded_) return false;  // the peer may not even run: waiting awake for it only keeps it from running
  if (request.kind != Kind::all_reduce && request.kind != Kind::broadcast && request.kind != Kind::barrier)
    return false;
  if (request.kind != Kind::barrier) {
    const std::size_t bytes = request.input.bytes();
    if (bytes == 0 || bytes > transport::kInlineBytes) return false;
  }
  return counts_by_order(request) && is_plain(request) && request.group->id == negotiation::kWorld &&
         transport_->size() > 1 && pending_.empty() && joined_.empty() && !in_step_;
}

// nullptr: done. Otherwise the operation goes on in the ordinary way.
Core::OperationPtr Core::try_express(const Request& request) {
  Express express;
  announce_in(express.notice, request);
  if (request.kind == Kind::all_reduce || (request.kind == Kind::broadcast && request.root == transport_->rank())) {
    const std::size_t bytes = request.input.bytes();
    express.notice.head.inline_bytes = static_cast<std::uint16_t>(bytes);
    std::memcpy(express.notice.head.inline_data, request.input.data, bytes);
  }
  Series& series = series_[negotiation::kWorld];
  express.order = series.unnamed++;
  express.notice.head.id = identity_by_order(negotiation::kWorld, series.joins, express.order);
  express.arrivals.resize(static_cast<std::size_t>(transport_->size()));
  const auto position = transport_->post(express.notice);
  if (!position) {  // the log is full: the ordinary way waits for room
    --series.unnamed;
    return submit_locked(request, /*background=*/false);
  }
  express.position = *position;
  recorder_.submitted(express.trace, name_of(request.kind), {}, express.notice.head.id, request.input.bytes(),
                      express.arrivals.size());
  if (!gather_express(express)) return adopt(request, express);

  auto* output = static_cast<std::byte*>(request.output.data);
  if (request.kind == Kind::all_reduce) {
    std::vector<const std::byte*> leaves;
    leaves.reserve(express.arrivals.size());
    for (const NoticeRef& arrival : express.arrivals) {
      leaves.push_back(arrival ? arrival.head->inline_data : express.notice.head.inline_data);
    }
    collective::reduce({.dtype = request.input.dtype,
                        .op = request.op,
                        .leaves = leaves,
                        .outputs = {&output, 1},
                        .elements = static_cast<std::size_t>(request.input.elements()),
                        .divisor = leaves.size(),
                        .prescale = request.prescale,
                        .postscale = request.postscale});
  } else if (request.kind == Kind::broadcast && request.root != transport_->rank()) {
    std::memcpy(output, express.arrivals[static_cast<std::size_t>(request.root)].head->inline_data,
                request.output.bytes());
  }
  recorder_.done(express.trace);
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank())
      transport_->release(peer, express.arrivals[static_cast<std::size_t>(peer)].position);
  }
  return nullptr;
}

// True when every peer has announced the same operation. Notices of other operations are taken in on the way.
bool Core::gather_express(Express& express) {
  Patience patience(crowded_);
  std::size_t missing = express.arrivals.size() - 1;
  while (missing > 0) {
    bool any = false;
    for (int peer = 0; peer < transport_->size(); ++peer) {
      NoticeRef& arrival = express.arrivals[static_cast<std::size_t>(peer)];
      if (peer == transport_->rank() || arrival) continue;
      const NoticeRef notice = transport_->next(peer);
      if (!notice) continue;
      any = true;
      if (notice.head->id != express.notice.head.id) {
        take_notice(peer, notice);
        continue;
      }
      arrival = notice;
      --missing;
      if (notice.head->signature != express.notice.head.signature) return false;
    }
    if (any) {
      patience.reset();
    } else if (!patience.wait_awake()) {
      return false;
    }
  }
  return true;
}

Core::OperationPtr Core::adopt(const Request& request, const Express& express) {
  auto operation = std::make_shared<Operation>(request);
  operation->notice = express.notice;
  operation->order = express.order;
  operation->submitted = Clock::now();
  operation->trace = express.trace;
  const std::uint64_t id = express.notice.head.id;
  pending_.emplace(id, operation);
  const NoticeRef own{
      .head = &operation->notice.head, .detail = &operation->notice.detail, .position = express.position};
  matcher_.arrive(transport_->rank(), request.group, own);
  for (int peer = 0; peer < transport_->size(); ++peer) {
    const NoticeRef& arrival = express.arrivals[static_cast<std::size_t>(peer)];
    if (arrival) matcher_.arrive(peer, request.group, arrival);
  }
  begin_if_complete(id);
  return operation;
}

}  // namespace lockstep::engine
