// From notices to running operations: who is ready with what, who goes without whom, and what each algorithm is told.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "collective/leaf_table.hpp"
#include "engine/core.hpp"
#include "engine/request.hpp"
#include "engine/staging.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {

using collective::Kind;
using transport::NoticeRef;

bool Core::take_notices() {
  bool any = false;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    any |= take_offers(peer);
    while (const NoticeRef notice = transport_->next(peer)) {
      any = true;
      take_offers(peer);  // those that it made before
      take_notice(peer, notice);
    }
  }
  return any;
}

void Core::take_notice(int peer, const NoticeRef& notice) {
  recorder_.counters().notices_taken(1);
  ++activity_;
  const auto kind = static_cast<Kind>(notice.head->kind);
  if (kind == Kind::new_group) groups_.note(notice.head->group, {notice.head->inline_data, notice.head->inline_bytes});
  negotiation::MembersPtr members;
  if (kind == Kind::send || kind == Kind::receive) {
    if (static_cast<int>(notice.head->output) == transport_->rank()) members = pair_of(peer, transport_->rank());
  } else {
    members = groups_.find(notice.head->group);
  }
  if (!members) return transport_->release(peer, notice.position);  // none of this rank's business
  const std::uint64_t id = notice.head->id;
  if ((notice.head->flags & (transport::kAlone | transport::kInStep)) == transport::kAlone &&
      notice.head->group == negotiation::kWorld) {
    std::uint64_t& ended = ended_before_[static_cast<std::size_t>(peer)];
    ended = std::max(ended, notice.head->number);
  }
  // While this rank has joined, operations of those who have not are none of its business. Those of a peer that has
  // are: it knew already that all had joined, and has gone on.
  const bool sitting_out =
      has_joined(members->id, transport_->rank()) && !has_joined(members->id, peer) && !pending_.contains(id);
  if (sitting_out && kind != Kind::join) return transport_->release(peer, notice.position);
  if (kind == Kind::bucket) return take_bucket_notice(peer, notice);
  if (is_late(*notice.head)) return transport_->release(peer, notice.position);
  if (peer == 0 && (notice.head->flags & transport::kPlannable) != 0)
    planning_.order[notice.head->number].push_back({id, notice.head->input});
  matcher_.arrive(peer, members, notice);
  if (kind == Kind::join) note_join(peer, members);
  if (kind == Kind::end_step) note_end(peer, *notice.head);
  begin_if_complete(id);
}

void Core::begin_if_complete(std::uint64_t id) {
  const auto own = pending_.find(id);
  const auto* gathering = matcher_.find(id);
  if (own == pending_.end() || gathering == nullptr || !gathering->has(transport_->rank())) return;
  const OperationPtr operation = own->second;
  if (operation->algorithm) return;  // it has begun already
  for (int rank : gathering->missing()) {
    if (!goes_without(*operation, rank)) return;
    if (operation->request.partner == rank) {
      return fail(operation, Error(ErrorCode::mismatch, fmt::format("{} can never be matched: rank {} has joined",
                                                                    text_of(*operation), rank)));
    }
  }
  begin(operation, *gathering);
}

void Core::begin(const OperationPtr& operation, const negotiation::Gathering& gathering) {
  const Request& request = operation->request;
  if (operation->notice.detail.no_room != 0 || !gathering.agreed()) {
    std::vector<negotiation::Statement> statements;
    for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
      if (gathering.arrivals[i]) statements.push_back({gathering.members->ranks[i], gathering.arrivals[i].detail});
    }
    if (const auto text = negotiation::no_room_text(text_of(*operation), statements)) {
      return fail(operation, Error(ErrorCode::system, *text));
    }
    const std::string name = negotiation::name_text(request.input.name, operation->order);
    fail(operation, Error(ErrorCode::mismatch, negotiation::disagreement_text(name, statements)));
    return;
  }
  if (request.root >= 0 && !gathering.has(request.root)) {
    fail(operation,
         Error(
             ErrorCode::mismatch,
             fmt::format("{}: rank {}, its root, takes no part: it has joined or has ended the step without it. Choose "
                         "another root.",
                         text_of(*operation), request.root)));
    return;
  }
  if (request.kind == Kind::join) end_join(*operation, gathering);
  if (request.kind == Kind::end_step) settle_step(*operation, gathering);
  note_company(*operation, gathering);
  try {
    operation->algorithm = request.kind == Kind::bucket ? bucket_reduce(*operation, gathering)
                                                        : collective::choose(call_for(*operation, gathering));
    recorder_.matched(operation->trace);
    running_.push_back(operation);
  } catch (const Error& error) {
    give_up(operation, error);
  }
}

// A mistake of this rank's caller, or one that every rank sees alike, ends the operation here. When the machine refuses
// to do its part, or an epilogue does, the others would wait for it in vain, so the world ends.
void Core::give_up(const OperationPtr& operation, const Error& error) {
  if (error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::mismatch) {
    if (transport::Messages* messages = transport_->messages()) messages->refuse(operation->notice.head.id);
    return fail(operation, error);
  }
  transport_->pronounce(
      {.code = error.code(),
       .rank = transport_->rank(),
       .text = fmt::format("rank {} failed in {}: {}", transport_->rank(), text_of(*operation), error.what())});
  end_world(*transport_->verdict());
}

collective::Call Core::call_for(Operation& operation, const negotiation::Gathering& gathering) {
  const Request& request = operation.request;
  const negotiation::Members& members = *gathering.members;
  collective::Call call;
  call.kind = request.kind == Kind::receive ? Kind::send : request.kind;
  call.id = operation.notice.head.id;
  call.dtype = request.input.dtype;
  call.result_dtype = request.result_dtype();
  call.total_leaves = request.leaves.total;
  call.epilogue = request.epilogue;
  call.pack = request.pack.get();
  call.op = request.op;
  call.root = request.root >= 0 ? static_cast<int>(*members.index_of(request.root)) : -1;
  call.prescale = request.prescale;
  call.postscale = request.postscale;
  call.self = static_cast<int>(*members.index_of(transport_->rank()));
  call.input = static_cast<const std::byte*>(request.input.data);
  call.output = static_cast<std::byte*>(request.output.data);
  call.transport = transport_.get();
  transport::SharedMemory* shared = transport_->shared();
  for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
    const NoticeRef& notice = gathering.arrivals[i];
    collective::Party party;
    party.rank = members.ranks[i];
    party.present = static_cast<bool>(notice);
    if (party.present) describe_party(party, notice, operation, shared);
    call.parties.push_back(party);
  }
  const std::size_t shaped_by = request.root >= 0 && request.kind != Kind::reduce && request.kind != Kind::gather
                                    ? static_cast<std::size_t>(call.root)
                                    : static_cast<std::size_t>(call.self);
  const transport::NoticeDetail& shape = *gathering.arrivals[shaped_by].detail;
  call.row_elements = negotiation::row_elements_of(shape);
  call.elements = static_cast<std::size_t>(negotiation::rows_of(shape)) * call.row_elements;
  collective::check_leaf_ranges(call);
  call.divisor = collective::divisor_of(call, request.by_contributors);
  call.received = &operation.received;
  // Notices stay until the operation ends; a copy of one would cost a tiny operation more than its sum.
  call.make_output = [&operation, like = &shape](std::int64_t rows) { return make_output(operation, *like, rows); };
  return call;
}

// --- join

bool Core::has_joined(negotiation::GroupId group, int rank) const {
  const auto found = joins_.find(group);
  if (found == joins_.end()) return false;
  const auto joins = found->second.find(rank);
  const auto series = series_.find(group);
  const std::uint64_t completed = series != series_.end() ? series->second.joins : 0;
  return joins != found->second.end() && joins->second > completed;
}

bool Core::somebody_has_joined(negotiation::GroupId group) const {
  const auto found = joins_.find(group);
  return found != joins_.end() && std::any_of(found->second.begin(), found->second.end(),
                                              [&](const auto& entry) { return has_joined(group, entry.first); });
}

// From here on `rank` counts as absent in every operation of the group that it has not announced before.
void Core::note_join(int rank, const negotiation::MembersPtr& members) {
  ++joins_[members->id][rank];
  if (rank == transport_->rank()) {
    const auto unwanted = [&](std::uint64_t, const transport::NoticeHead& notice) {
      return notice.group == members->id;
    };
    for (const auto& [peer, position] : matcher_.drop_without(rank, unwanted)) transport_->release(peer, position);
  }
  std::vector<std::uint64_t> affected;
  for (const auto& [id, operation] : pending_) {
    if (operation->request.group->id == members->id && operation->request.kind != Kind::join) affected.push_back(id);
  }
  for (std::uint64_t id : affected) begin_if_complete(id);
}

// All have joined: everybody takes part again, except those that have gone on and joined once more since. Who was last
// is read off the notices, so that all agree.
void Core::end_join(Operation& operation, const negotiation::Gathering& gathering) {
  Series& series = series_[operation.request.group->id];
  ++series.joins;
  series.unnamed = 0;
  series.uses.clear();
  if (&series == &world_series_) std::fill(ended_before_.begin(), ended_before_.end(), 0);
  series.uses_in_step.clear();
  if (operation.request.group->id == negotiation::kWorld) {
    begun_since_join_ = 0;
    forget_plans();
  }
  std::int64_t latest = -1;
  for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
    std::int64_t when = 0;
    std::memcpy(&when, gathering.arrivals[i].head->inline_data, sizeof when);
    if (when < latest) continue;
    latest = when;
    operation.last_joined = gathering.members->ranks[i];
  }
}

bool Core::progress() {
  if (ended_) return false;
  bool any = post_queued();
  any |= take_notices();
  for (std::size_t i = 0; i < running_.size();) {
    const OperationPtr operation = running_[i];
    try {
      operation->has_result = operation->has_result || operation->algorithm->advance();
      if (!operation->has_result || !transport_->has_sent(operation->notice.head.id)) {
        ++i;
        continue;
      }
      finish(operation);  // takes it out of running_
    } catch (const Error& error) {
      give_up(operation, error);
    }
    any = true;
  }
  if (const auto verdict = transport_->verdict()) end_world(*verdict);
  return any;
}

}  // namespace lockstep::engine
