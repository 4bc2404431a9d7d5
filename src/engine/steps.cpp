// Steps: what a rank has not submitted when it ends a step, it will not submit any more, and the others go on without.
//
// The end of a step is announced like an operation. Nobody waits for it at once, only at the end of the next step: so
// ranks are never more than one step apart, and yet nobody waits for the slowest in the usual course of things.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.hpp"
#include "engine/core.hpp"

namespace lockstep::engine {

using collective::Kind;
using fusion::Step;

void Core::begin_step(bool exclusive) {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  if (in_step_) throw Error(ErrorCode::invalid_argument, "begin_step was called twice without end_step between");
  if (has_joined(negotiation::kWorld, transport_->rank())) {
    throw Error(ErrorCode::invalid_argument, "begin_step was called after join. Wait for join to return first.");
  }
  in_step_ = true;
  exclusive_ = exclusive;
  step_ = fusion::step_number(series_[negotiation::kWorld].joins, ++begun_since_join_);
  named_in_step_ = 0;
  std::fill(met_in_step_.begin(), met_in_step_.end(), false);
  begin_planned_step();
  recorder_.step_began(steps_ + 1);
}

bool Core::belongs_to_step(bool of_step) const { return in_step_ && (of_step || !exclusive_); }

std::uint64_t Core::end_step() {
  std::unique_lock lock(mutex_);
  if (!in_step_) throw Error(ErrorCode::invalid_argument, "end_step was called without begin_step");
  in_step_ = false;
  const bool announced = !ended_;
  if (announced) {
    if (last_end_) step_operations_.push_back(last_end_);
    if (last_end_) last_end_->submitted = transport_->now();  // from now on it is waited for
    fusion::StepEnd end = end_planned_step();
    end.named = named_in_step_;
    last_end_ = announce_end(end);
  }
  OperationPtr failed;
  while (!step_operations_.empty()) {  // a bucket that is dissolved leaves new ones
    const std::vector<OperationPtr> operations = std::exchange(step_operations_, {});
    lock.unlock();
    for (const OperationPtr& operation : operations) {
      wait(*operation);
      if (!failed && operation->error) failed = operation;
    }
    lock.lock();
  }
  settled_ = step_;
  std::erase_if(planning_.seen, [&](const auto& seen) { return seen.second.step <= settled_; });
  if (failed) check(*failed);
  if (!ended_) refuse_strangers();
  if (ended_) throw *ended_;
  recorder_.step_ended();
  return ++steps_;
}

Core::OperationPtr Core::announce_end(const fusion::StepEnd& end) {
  Request request;
  request.kind = Kind::end_step;
  request.group = groups_.world();
  auto operation = std::make_shared<Operation>(std::move(request));
  announce_in(operation->notice, operation->request);
  transport::NoticeHead& head = operation->notice.head;
  head.number = step_;
  head.inline_bytes = sizeof end;
  std::memcpy(head.inline_data, &end, sizeof end);
  const std::uint64_t words[] = {static_cast<std::uint64_t>(Kind::end_step), step_};
  Hasher id;
  id.add(words, sizeof words);
  head.id = id.value();
  // Nobody waits for it yet, so it cannot stall either.
  operation->submitted = Clock::time_point::max();
  pending_.emplace(head.id, operation);
  queued_.push_back(operation);
  post_queued();
  return operation;
}

void Core::note_end(int rank, const transport::NoticeHead& head) {
  const Step step = head.number;
  fusion::StepEnd end;
  std::memcpy(&end, head.inline_data, sizeof end);
  ended_ranks_[static_cast<std::size_t>(rank)] = step;
  ended_with_[static_cast<std::size_t>(rank)][step % 2] = end.named;
  if (rank == transport_->rank()) {
    const auto unwanted = [&](std::uint64_t, const transport::NoticeHead& notice) { return is_late(notice); };
    for (const auto& [peer, position] : matcher_.drop_without(rank, unwanted)) transport_->release(peer, position);
  } else {
    begin_those_of_step(step);
  }
}

void Core::note_company(const Operation& operation, const negotiation::Gathering& gathering) {
  const bool counts = operation.request.kind == Kind::bucket ||
                      (operation.step == step_ && operation.request.group->id == negotiation::kWorld);
  if (!counts) return;
  for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
    if (gathering.arrivals[i]) met_in_step_[static_cast<std::size_t>(gathering.members->ranks[i])] = true;
  }
}

// A tensor that some ranks leave out is nothing unusual. Two ranks that both had some, and none in common, are not in
// the same place of the program: one has skipped a step, or taken another path. What they got is no sum of all.
void Core::refuse_strangers() {
  if (named_in_step_ == 0) return;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == transport_->rank() || met_in_step_[index] || has_joined(negotiation::kWorld, peer)) continue;
    if (ended_ranks_[index] < step_ || ended_with_[index][step_ % 2] == 0) continue;
    transport_->pronounce(
        {.code = ErrorCode::mismatch,
         .rank = -1,
         .text = fmt::format("ranks {} and {} have nothing in common in step {}: each submitted operations that the "
                             "other did not. Likely cause: one of them has skipped a step, or took another path. Every "
                             "rank must begin and end the same steps.",
                             std::min(peer, transport_->rank()), std::max(peer, transport_->rank()), steps_ + 1)});
    end_world(*transport_->verdict());
    return;
  }
}

void Core::begin_those_of_step(Step step) {
  std::vector<std::uint64_t> affected;
  for (const auto& [id, operation] : pending_) {
    if (operation->step == step && !operation->algorithm) affected.push_back(id);
  }
  for (std::uint64_t id : affected) begin_if_complete(id);
}

// True for the notice of an operation of a step that this rank has ended without submitting it.
bool Core::is_late(const transport::NoticeHead& notice) {
  return (notice.flags & transport::kInStep) != 0 &&
         notice.number <= ended_ranks_[static_cast<std::size_t>(transport_->rank())] && !pending_.contains(notice.id) &&
         !may_still_submit(notice.id);
}

// True when the operation need not wait for that rank, which has not announced it.
bool Core::goes_without(const Operation& operation, int rank) const {
  if (operation.request.kind == Kind::join) return false;
  if (has_joined(operation.request.group->id, rank)) return true;
  return operation.step != fusion::kNoStep && ended_ranks_[static_cast<std::size_t>(rank)] >= operation.step &&
         !owes(operation, rank);
}

// The end of a step is only a message to the others.
bool Core::nothing_under_way() const {
  return pending_.empty() || (pending_.size() == 1 && last_end_ && !last_end_->ended());
}

}  // namespace lockstep::engine
