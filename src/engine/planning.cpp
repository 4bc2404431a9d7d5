// Learning plans. The order in which rank 0 submits is known to all, because all read its notices; and every rank says
// at the end of a step which tensors it submitted, as a hash of the set. When all had the same set in step k, its plan
// is in force from step k + 2 on: by then every rank has seen the end of step k on every other.
#include "engine/planning.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "engine/core.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using fusion::Entry;
using fusion::Plan;
using fusion::Step;

// A program that has this many sets of tensors, each with waits in between, is none to make plans for.
constexpr std::size_t kMostRefused = 16;

Entry entry_of(const Operation& operation, std::uint64_t hash) {
  const Request& request = operation.request;
  Entry entry;
  entry.like = request.input;
  entry.like.data = nullptr;
  entry.part = {.dtype = request.input.dtype,
                .op = request.op,
                .prescale = request.prescale,
                .postscale = request.postscale,
                .by_contributors = request.by_contributors,
                .elements = static_cast<std::size_t>(request.input.elements())};
  entry.key = operation.key;
  entry.hash = hash;
  return entry;
}

std::uint64_t hash_of(const Operation& operation) {
  const std::uint64_t words[] = {operation.key, operation.notice.head.signature};
  Hasher hasher;
  hasher.add(words, sizeof words);
  return hasher.value();
}

// First what the plan of that step held already, in the order in which it was submitted, then the rest in that of rank
// 0.
std::shared_ptr<const Plan> make_plan(const StepRecord& record, const std::vector<Planning::Candidate>& order) {
  std::unordered_map<std::uint64_t, const Operation*> by_key;
  std::unordered_map<std::uint64_t, const Operation*> by_id;
  for (const auto& operation : record.ordinary) {
    by_key.emplace(operation->key, operation.get());
    by_id.emplace(operation->notice.head.id, operation.get());
  }
  std::vector<Entry> entries;
  if (record.plan) {
    auto used = record.used.begin();
    for (std::size_t i = 0; i < record.plan->entries().size(); ++i) {
      const Entry& entry = record.plan->entries()[i];
      const auto ordinary = by_key.find(entry.key);
      if (ordinary != by_key.end()) {
        entries.push_back(entry_of(*ordinary->second, hash_of(*ordinary->second)));
        entries.back().place = entry.place;  // on other ranks it may have been part of its bucket
        entries.back().turn = entry.turn;
      } else if (used != record.used.end() && *used == i) {
        entries.push_back(entry);
      }
      if (used != record.used.end() && *used == i) ++used;
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.turn < b.turn; });
  }
  for (const auto& [id, place] : order) {
    const auto found = by_id.find(id);
    if (found == by_id.end()) continue;
    entries.push_back(entry_of(*found->second, hash_of(*found->second)));
    entries.back().place = place;
  }
  return std::make_shared<const Plan>(std::move(entries));
}

}  // namespace

// Called for an operation that goes in the ordinary way, before it is posted.
void Core::learn_from(const OperationPtr& operation) {
  const Request& request = operation->request;
  if (!operation->plannable || operation->step == fusion::kNoStep || operation->order != 0) return;
  if (!is_world(request.group)) return;
  if (transport_->shared() == nullptr || transport_->size() == 1) return;
  planning_.record.set.add(hash_of(*operation));
  planning_.record.ordinary.push_back(operation);
  if (operation->entry >= 0) return;  // it has its place in the order
  operation->notice.head.flags |= transport::kPlannable;
  if (transport_->rank() == 0) {
    planning_.order[operation->step].push_back({operation->notice.head.id, operation->notice.head.input});
  }
}

void Core::begin_planned_step() {
  Planning& planning = planning_;
  planning.record = {};
  planning.record.step = step_;
  std::erase_if(planning.retired, [&](const auto& retired) { return retired.first + 2 <= step_; });
  while (!planning.decisions.empty() && planning.decisions.front().first <= step_) {
    if (planning.at_work) planning.retired.emplace_back(step_, std::move(planning.at_work));
    const auto plan = std::move(planning.decisions.front().second);
    planning.decisions.erase(planning.decisions.begin());
    if (plan) planning.at_work = std::make_unique<PlanAtWork>(plan, *transport_->shared());
  }
  if (!planning.at_work) return;
  planning.record.plan = planning.at_work->plan;
  for (auto& bucket : planning.at_work->buckets) {
    const std::uint64_t words[] = {planning.record.plan->hash(), step_, planning.at_work->index_of(bucket)};
    Hasher id;
    id.add(words, sizeof words);
    bucket = {};
    bucket.id = id.value();
    const auto seen = planning.seen.find(bucket.id);
    if (seen != planning.seen.end() && seen->second.dissolved) bucket.state = PlanAtWork::Bucket::State::dissolved;
  }
}

// What is announced of the step, which now ends.
fusion::StepEnd Core::end_planned_step() {
  StepRecord& record = planning_.record;
  if (planning_.at_work) post_filling_buckets();
  const fusion::StepEnd end{.set = record.set, .waited_for_bucket = record.waited_for_bucket ? 1U : 0U};
  if (planning_.at_work && record.set != record.plan->set()) {
    for (std::size_t i = 0; i < planning_.at_work->members.size(); ++i) {
      if (planning_.at_work->members[i].used == record.step) record.used.push_back(i);
    }
  }
  planning_.records.emplace(record.step, std::move(record));
  return end;
}

// All ranks that have not joined have ended the step, and everybody comes to the same conclusion.
void Core::settle_step(const Operation& end, const negotiation::Gathering& gathering) {
  const Step step = end.notice.head.number;
  const auto found = planning_.records.find(step);
  if (found == planning_.records.end()) return;
  const StepRecord record = std::move(found->second);
  const std::vector<Planning::Candidate> order = std::move(planning_.order[step]);
  planning_.records.erase(planning_.records.begin(), planning_.records.upper_bound(step));
  planning_.order.erase(planning_.order.begin(), planning_.order.upper_bound(step));

  bool same = true;
  bool waited = false;
  for (const transport::NoticeRef& arrival : gathering.arrivals) {
    fusion::StepEnd other;
    if (arrival) std::memcpy(&other, arrival.head->inline_data, sizeof other);
    same = same && arrival && other.set == record.set;
    waited = waited || other.waited_for_bucket != 0;
  }
  auto decide = [&](std::shared_ptr<const Plan> plan) {
    planning_.decided = plan ? plan->set() : fusion::StepSet{};
    planning_.decisions.emplace_back(step + 2, std::move(plan));
  };
  if (waited && record.plan) {
    if (std::count(planning_.refused.begin(), planning_.refused.end(), record.plan->set()) == 0)
      planning_.refused.push_back(record.plan->set());
    if (planning_.decided == record.plan->set()) decide(nullptr);
    return;
  }
  const bool refused = planning_.refused.size() >= kMostRefused ||
                       std::count(planning_.refused.begin(), planning_.refused.end(), record.set) > 0;
  if (!same || refused || record.set.count == 0 || record.set == planning_.decided) return;
  decide(make_plan(record, order));
}

// After a join of the world: ranks that had joined have missed what the others learned. All steps before are over on
// all ranks, so nobody reads the tables any more.
void Core::forget_plans() {
  const Step first = fusion::step_number(series_[negotiation::kWorld].joins, 0);
  Planning fresh;
  for (auto& [step, order] : planning_.order) {
    if (step > first) fresh.order.emplace(step, std::move(order));  // of a rank that is ahead
  }
  for (auto& [id, seen] : planning_.seen) {
    if (seen.step > first) fresh.seen.emplace(id, std::move(seen));
  }
  planning_ = std::move(fresh);
}

}  // namespace lockstep::engine
