// Buckets that cannot become full.
//
// A plan must never make a program wait that would not wait without it. So a bucket is dissolved when this rank waits
// for one of its members before it is full, when a member comes with another description, or when a peer has posted it
// and it is still not full here after a while. Its members then go one by one, in the ordinary way, on all ranks.
#include <algorithm>

#include "engine/core.hpp"
#include "engine/staging.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using collective::PartPlace;
using transport::kNowhere;
using State = PlanAtWork::Bucket::State;

// A peer may be waiting for a bucket that this rank has begun.
constexpr auto kPeerWaits = std::chrono::seconds(1);

}  // namespace

// `tell`: the peers do not know yet.
void Core::dissolve(PlanAtWork::Bucket& bucket, bool tell) {
  if (bucket.state == State::dissolved) return;
  PlanAtWork& work = *planning_.at_work;
  const bool posted = bucket.state == State::posted;
  bucket.state = State::dissolved;
  if (posted) {
    withdraw(*bucket.operation);
  } else if (tell) {
    const OperationPtr notice = bucket_notice(bucket);
    notice->notice.head.flags |= transport::kDissolved;
    notice->state.store(Operation::State::done, std::memory_order_relaxed);  // nothing comes back
    queued_.push_back(notice);
  }
  forget_gathering(bucket.id);
  const fusion::BucketRange& range = work.plan->buckets()[work.index_of(bucket)];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    PlanAtWork::Member& member = work.members[i];
    if (member.used == step_ && member.in_bucket) go_alone(member);
  }
  free_memory(bucket);
  post_queued();
}

// The notice stays where it is in the queue or in the log: the peers must read it before the end of the step, so that
// they know that this rank's members will come one by one.
void Core::withdraw(Operation& bucket) {
  bucket.state.store(Operation::State::done, std::memory_order_release);
  pending_.erase(bucket.notice.head.id);
  --background_;
}

void Core::go_alone(PlanAtWork::Member& member) {
  const OperationPtr operation = member.operation;
  member.in_bucket = false;
  member.alone = true;
  operation->bucket = -1;
  operation->notice = {};
  try {
    announce_in(operation->notice, operation->request);
    stage(*operation, *transport_);
    operation->submitted = transport_->now();
    enter(operation);
  } catch (const Error& error) {
    give_up(operation, error);
  }
}

// An operation under a planned name goes in the ordinary way, so its bucket cannot become full.
void Core::dissolve_bucket_under(Operation& operation) {
  PlanAtWork* work = planning_.at_work.get();
  if (!belongs_to_step(operation.of_step) || work == nullptr || operation.request.input.name.empty() ||
      !is_world(operation.request.group))
    return;
  const auto entry = work->plan->find(operation.key, operation.request.input.name);
  if (!entry || work->members[*entry].used == step_) return;
  operation.entry = static_cast<int>(*entry);
  if (!work->has_tables()) planning_.record.waited_for_bucket = true;  // it never will, so the plan is of no use
  dissolve(work->buckets[work->plan->bucket_of(*entry)], /*tell=*/true);
}

// Somebody wants the result now. Were the others of its bucket to come only afterwards, it would wait for ever.
void Core::dissolve_if_awaited(const Operation& operation) {
  if (operation.ended() || operation.bucket < 0 || operation.request.kind == Kind::bucket) return;
  PlanAtWork::Bucket& bucket = planning_.at_work->buckets[static_cast<std::size_t>(operation.bucket)];
  if (bucket.state != State::filling) return;
  planning_.record.waited_for_bucket = true;
  dissolve(bucket, /*tell=*/true);
}

void Core::look_after_buckets(bool waiting) {
  if (!in_step_ || !planning_.at_work || ended_) return;
  for (PlanAtWork::Bucket& bucket : planning_.at_work->buckets) {
    if (bucket.state != State::filling || bucket.present == 0) continue;
    const auto seen = planning_.seen.find(bucket.id);
    if (seen == planning_.seen.end() || transport_->now() - seen->second.since < kPeerWaits) continue;
    if (waiting) planning_.record.waited_for_bucket = true;  // it may be so in every step
    dissolve(bucket, /*tell=*/true);
  }
}

// A bucket that is dissolved after a while makes things go on by themselves.
bool Core::will_dissolve() const {
  if (!in_step_ || !planning_.at_work) return false;
  const auto& buckets = planning_.at_work->buckets;
  return std::any_of(buckets.begin(), buckets.end(), [&](const PlanAtWork::Bucket& bucket) {
    return bucket.state == State::filling && bucket.present > 0 && planning_.seen.contains(bucket.id);
  });
}

// True when the rank has the tensor in a bucket that it posted, and will submit it by itself now that the bucket is
// dissolved, though it has ended the step.
bool Core::owes(const Operation& operation, int rank) const {
  if (operation.entry < 0 || operation.order != 0 || !planning_.at_work) return false;
  const auto entry = static_cast<std::size_t>(operation.entry);
  const fusion::Plan& plan = *planning_.at_work->plan;
  const std::size_t bucket = plan.bucket_of(entry);
  const auto seen = planning_.seen.find(planning_.at_work->buckets[bucket].id);
  if (seen == planning_.seen.end()) return false;
  const PartPlace* table = seen->second.tables[static_cast<std::size_t>(rank)];
  return table != nullptr && table[entry - plan.buckets()[bucket].first].input != kNowhere;
}

// True when this rank would submit the operation if a bucket were dissolved.
bool Core::may_still_submit(std::uint64_t id) {
  PlanAtWork* work = planning_.at_work.get();
  if (work == nullptr) return false;
  if (planning_.individual_of != step_) {
    planning_.individual_of = step_;
    planning_.individual.clear();
    const std::uint64_t joins = series_[negotiation::kWorld].joins;
    for (const PlanAtWork::Member& member : work->members) {
      if (member.used == step_ && member.in_bucket)
        planning_.individual.insert(identity_by_name(member.operation->key, joins, step_, 0));
    }
  }
  return planning_.individual.contains(id);
}

}  // namespace lockstep::engine
