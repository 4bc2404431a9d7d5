// The plan at work: submissions fill buckets, a full bucket is posted with one notice, and its members end with it.
//
// A bucket is reduced as a whole only if every rank that has something of it has posted it whole; if one rank dissolves
// it (dissolving.cpp), all do.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/core.hpp"
#include "engine/staging.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using collective::PartPlace;
using fusion::Entry;
using transport::kNowhere;
using transport::NoticeRef;
using transport::Place;
using State = PlanAtWork::Bucket::State;

bool is_like(const TensorView& tensor, const TensorView& like) {
  return tensor.dtype == like.dtype && tensor.shape == like.shape && tensor.strides == like.strides &&
         tensor.device == like.device;
}

// The same operation as planned, in memory that makes sense. Everything else is for the ordinary way to refuse or do.
bool fits(const Entry& entry, const Reduce& wanted) {
  const collective::Part& part = entry.part;
  const TensorView& input = *wanted.input;
  const TensorView& output = *wanted.output;
  if (wanted.op != part.op || wanted.prescale != part.prescale || wanted.postscale != part.postscale ||
      wanted.by_contributors != part.by_contributors || !is_like(input, entry.like))
    return false;
  const std::size_t bytes = part.bytes();
  const auto* first = static_cast<const std::byte*>(input.data);
  const auto* second = static_cast<const std::byte*>(output.data);
  if (bytes > 0 && (first == nullptr || second == nullptr)) return false;
  if (&input == &output) return true;
  return is_like(output, entry.like) && (first == second || first + bytes <= second || second + bytes <= first);
}

}  // namespace

PlanAtWork::PlanAtWork(std::shared_ptr<const fusion::Plan> made, transport::SharedMemory& shared)
    : plan(std::move(made)), members(plan->entries().size()), buckets(plan->buckets().size()), shared_(shared) {
  const std::size_t places = kTables * plan->entries().size();
  void* block = shared_.allocate(places * sizeof(PartPlace));
  if (block == nullptr) return;
  tables_ = new (block) PartPlace[places];
}

PlanAtWork::~PlanAtWork() {
  for (Bucket& bucket : buckets) {
    if (bucket.memory != nullptr) shared_.deallocate(bucket.memory);
  }
  if (tables_ != nullptr) shared_.deallocate(tables_);
}

// --- filling

// nullptr: it goes in the ordinary way.
Core::OperationPtr Core::submit_planned(const Reduce& wanted) {
  PlanAtWork* work = planning_.at_work.get();
  if (!belongs_to_step(wanted.of_step) || work == nullptr || wanted.input->name.empty() || !is_world(wanted.group))
    return nullptr;
  const auto found = work->plan->find(name_key_in_world(wanted.input->name), wanted.input->name);
  if (!found) return nullptr;
  const Entry& entry = work->plan->entries()[*found];
  PlanAtWork::Member& member = work->members[*found];
  PlanAtWork::Bucket& bucket = work->buckets[work->plan->bucket_of(*found)];
  if (member.used == step_) {
    if (!member.operation->ended()) refuse_name_in_flight(entry.like.name);
    return nullptr;
  }
  if (bucket.state != State::filling || !work->has_tables() || !fits(entry, wanted)) return nullptr;
  if (names_in_flight_.contains(entry.key)) refuse_name_in_flight(entry.like.name);
  if (!find_place(*work, bucket, *found, wanted)) return nullptr;

  OperationPtr operation = renew(member, entry, wanted);
  operation->bucket = static_cast<int>(work->index_of(bucket));
  member.used = step_;
  member.in_bucket = true;
  member.alone = false;
  planning_.record.set.add(entry.hash);
  ++named_in_step_;
  recorder_.submitted(operation->trace, name_of(Kind::all_reduce), entry.like.name, bucket.id, entry.part.bytes(),
                      static_cast<std::size_t>(transport_->size()));
  if (++bucket.present == work->plan->buckets()[work->index_of(bucket)].count) post_bucket(bucket);
  return operation;
}

// Writes into the table where the tensor lies, and copies it there if it must. False: there is no room.
bool Core::find_place(PlanAtWork& work, PlanAtWork::Bucket& bucket, std::size_t entry, const Reduce& wanted) {
  const std::size_t index = work.index_of(bucket);
  const fusion::BucketRange& range = work.plan->buckets()[index];
  const collective::Part& part = work.plan->entries()[entry].part;
  transport::SharedMemory& shared = *transport_->shared();
  PartPlace place{0, 0};
  work.members[entry].copied = false;
  if (part.bytes() > 0) {
    place.input = place_of(wanted.input->data, part.bytes(), shared);
    place.output =
        wanted.output->data == wanted.input->data ? place.input : place_of(wanted.output->data, part.bytes(), shared);
  }
  if (place.input == kNowhere || place.output == kNowhere) {
    if (bucket.memory == nullptr) bucket.memory = static_cast<std::byte*>(shared.allocate(range.bytes));
    if (bucket.memory == nullptr) return false;
    std::memcpy(bucket.memory + part.offset, wanted.input->data, part.bytes());
    place.input = place.output = shared.place_of(bucket.memory + part.offset, part.bytes());
    work.members[entry].copied = true;
  }
  work.table(step_, index)[entry - range.first] = place;
  return true;
}

// The member's operation of the step before is used again, unless somebody still holds it: making one costs more than
// all the rest of a submission.
Core::OperationPtr Core::renew(PlanAtWork::Member& member, const Entry& entry, const Reduce& wanted) {
  // Counting the copy reads what the last holder wrote when it let go; only then is the count looked at.
  OperationPtr operation = member.operation;
  if (!operation || operation.use_count() != 2) {
    Request request;
    request.kind = Kind::all_reduce;
    request.input = request.output = entry.like;
    request.op = wanted.op;
    request.prescale = wanted.prescale;
    request.postscale = wanted.postscale;
    request.by_contributors = wanted.by_contributors;
    request.group = groups_.world();
    operation = member.operation = std::make_shared<Operation>(std::move(request));
    operation->key = entry.key;
    operation->background = true;
    operation->entry = static_cast<int>(&member - planning_.at_work->members.data());
    operation->result = operation->request.output;
  }
  operation->request.input.data = wanted.input->data;
  operation->request.output.data = operation->result.data = wanted.output->data;
  operation->step = step_;
  operation->order = 0;
  operation->algorithm.reset();
  operation->has_result = false;
  operation->stall_reported = false;
  operation->error.reset();
  operation->state.store(Operation::State::pending, std::memory_order_relaxed);
  return operation;
}

// The tensor of that name in the plan, if it was submitted to its bucket in this step.
const PlanAtWork::Member* Core::member_of(NameKey key, const std::string& name) const {
  if (!planning_.at_work) return nullptr;
  const auto entry = planning_.at_work->plan->find(key, name);
  if (!entry || planning_.at_work->members[*entry].used != step_) return nullptr;
  return &planning_.at_work->members[*entry];
}

bool Core::is_in_flight(NameKey key, const std::string& name) const {
  if (names_in_flight_.contains(key)) return true;
  const PlanAtWork::Member* member = name.empty() ? nullptr : member_of(key, name);
  return member != nullptr && !member->operation->ended();
}

// A second use of a name in a step goes in the ordinary way; the first counts all the same.
std::uint64_t Core::uses_in_bucket(const Operation& operation) const {
  const PlanAtWork::Member* member = member_of(operation.key, operation.request.input.name);
  return member != nullptr && !member->alone && operation.step == step_ ? 1 : 0;
}

// --- posting

Core::OperationPtr Core::bucket_notice(const PlanAtWork::Bucket& bucket) {
  Request request;
  request.kind = Kind::bucket;
  request.group = groups_.world();
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->bucket = static_cast<int>(planning_.at_work->index_of(bucket));
  operation->step = step_;
  operation->notice.detail.kind = static_cast<std::int32_t>(Kind::bucket);
  transport::NoticeHead& head = operation->notice.head;
  head.kind = static_cast<std::uint8_t>(Kind::bucket);
  head.group = negotiation::kWorld;
  head.id = bucket.id;
  head.signature = planning_.at_work->plan->hash();
  head.number = step_;
  head.flags = transport::kInStep;
  head.output = static_cast<Place>(operation->bucket);
  return operation;
}

void Core::post_bucket(PlanAtWork::Bucket& bucket) {
  PlanAtWork& work = *planning_.at_work;
  const std::size_t index = work.index_of(bucket);
  const fusion::BucketRange& range = work.plan->buckets()[index];
  PartPlace* table = work.table(step_, index);
  if (bucket.present < range.count) {
    for (std::size_t i = 0; i < range.count; ++i) {
      if (work.members[range.first + i].used != step_) table[i] = {};
    }
  }
  bucket.state = State::posted;
  bucket.operation = bucket_notice(bucket);
  const OperationPtr operation = bucket.operation;
  operation->notice.head.input = transport_->shared()->place_of(table, range.count * sizeof(PartPlace));
  operation->background = true;
  operation->submitted = transport_->now();
  pending_.emplace(bucket.id, operation);
  step_operations_.push_back(operation);
  ++background_;
  // After the last one the program ends its step, which sees to everything: a second thread would only be in the way.
  if (std::any_of(work.buckets.begin(), work.buckets.end(), [](auto& other) { return other.state == State::filling; }))
    wake_thread();
  queued_.push_back(operation);
  post_queued();
}

// The step ends: what is missing will not come any more.
void Core::post_filling_buckets() {
  for (PlanAtWork::Bucket& bucket : planning_.at_work->buckets) {
    if (bucket.state == State::filling && bucket.present > 0) post_bucket(bucket);
  }
}

// --- matching

void Core::take_bucket_notice(int peer, const NoticeRef& notice) {
  const transport::NoticeHead& head = *notice.head;
  if (head.number <= settled_) return transport_->release(peer, notice.position);
  Planning::Seen& seen = planning_.seen[head.id];
  if (seen.tables.empty()) {
    seen.step = head.number;
    seen.since = transport_->now();
    seen.tables.resize(static_cast<std::size_t>(transport_->size()));
  }
  PlanAtWork* work = planning_.at_work.get();
  const auto index = static_cast<std::size_t>(head.output);
  const bool known =
      work != nullptr && head.number == step_ && index < work->buckets.size() && work->buckets[index].id == head.id;
  if ((head.flags & transport::kDissolved) != 0) {
    seen.dissolved = true;
    transport_->release(peer, notice.position);
    forget_gathering(head.id);
    if (known) dissolve(work->buckets[index], /*tell=*/false);
    return;
  }
  seen.tables[static_cast<std::size_t>(peer)] =
      reinterpret_cast<const PartPlace*>(transport_->shared()->at(peer, head.input));
  const bool dissolved = seen.dissolved || (known && work->buckets[index].state == State::dissolved);
  if (dissolved || is_late(head)) return transport_->release(peer, notice.position);
  matcher_.arrive(peer, groups_.world(), notice);
  begin_if_complete(head.id);
}

std::unique_ptr<collective::Algorithm> Core::bucket_reduce(const Operation& operation,
                                                           const negotiation::Gathering& gathering) {
  PlanAtWork& work = *planning_.at_work;
  const auto index = static_cast<std::size_t>(operation.bucket);
  transport::SharedMemory& shared = *transport_->shared();
  collective::Bucket bucket;
  bucket.parts = work.plan->parts_of(index);
  bucket.bytes = work.plan->buckets()[index].bytes;
  bucket.transport = transport_.get();
  for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
    const int rank = gathering.members->ranks[i];
    const NoticeRef& arrival = gathering.arrivals[i];
    const std::byte* table = arrival ? shared.at(rank, arrival.head->input) : nullptr;
    bucket.parties.push_back({rank, reinterpret_cast<const PartPlace*>(table)});
    if (!arrival) continue;
    if (rank == transport_->rank()) bucket.self = bucket.words.size();
    bucket.words.push_back(shared.scratch(rank, arrival.position));
  }
  for_each_member(operation, [&](PlanAtWork::Member& member) { recorder_.matched(member.operation->trace); });
  return collective::make_bucket_reduce(std::move(bucket));
}

// --- ending

void Core::free_memory(PlanAtWork::Bucket& bucket) {
  if (bucket.memory != nullptr) transport_->shared()->deallocate(bucket.memory);
  bucket.memory = nullptr;
}

template <class Visit>
void Core::for_each_member(const Operation& bucket, const Visit& visit) {
  PlanAtWork& work = *planning_.at_work;
  const fusion::BucketRange& range = work.plan->buckets()[static_cast<std::size_t>(bucket.bucket)];
  for (std::size_t i = range.first; i < range.first + range.count; ++i) {
    PlanAtWork::Member& member = work.members[i];
    if (member.used == bucket.step && member.in_bucket) visit(member);
  }
}

void Core::finish_members(const Operation& operation) {
  PlanAtWork& work = *planning_.at_work;
  PlanAtWork::Bucket& bucket = work.buckets[static_cast<std::size_t>(operation.bucket)];
  for_each_member(operation, [&](PlanAtWork::Member& member) {
    Operation& ending = *member.operation;
    if (member.copied) {
      const auto entry = static_cast<std::size_t>(ending.entry);
      const collective::Part& part = work.plan->entries()[entry].part;
      std::memcpy(ending.request.output.data, bucket.memory + part.offset, part.bytes());
    }
    member.in_bucket = false;
    recorder_.done(ending.trace);
    ending.state.store(Operation::State::done, std::memory_order_release);
  });
  free_memory(bucket);
}

void Core::fail_members(const Operation& operation, const Error& error) {
  for_each_member(operation, [&](PlanAtWork::Member& member) {
    member.in_bucket = false;
    recorder_.failed(member.operation->trace, error.what());
    member.operation->error = error;
    member.operation->state.store(Operation::State::failed, std::memory_order_release);
  });
  free_memory(planning_.at_work->buckets[static_cast<std::size_t>(operation.bucket)]);
}

// The engine ends, and some buckets were never posted.
void Core::fail_filling_buckets(const Error& error) {
  if (!planning_.at_work) return;
  for (PlanAtWork::Bucket& bucket : planning_.at_work->buckets) {
    if (bucket.state == State::filling && bucket.present > 0) fail_members(*bucket_notice(bucket), error);
  }
  transport_->ring(transport_->rank());
}

void Core::record_waiting(Operation& operation, std::span<const int> missing) {
  if (operation.request.kind != Kind::bucket) return recorder_.waits_for(operation.trace, missing);
  for_each_member(operation,
                  [&](PlanAtWork::Member& member) { recorder_.waits_for(member.operation->trace, missing); });
}

// "all-reduce of 'a', 'b' and 198 more"
std::string Core::text_of_bucket(const Operation& bucket) const {
  const fusion::Plan& plan = *planning_.at_work->plan;
  const fusion::BucketRange& range = plan.buckets()[static_cast<std::size_t>(bucket.bucket)];
  std::string text = fmt::format("all-reduce '{}'", plan.entries()[range.first].like.name);
  if (range.count > 1) text += fmt::format(", '{}'", plan.entries()[range.first + 1].like.name);
  if (range.count > 2) text += fmt::format(" and {} more", range.count - 2);
  return text;
}

}  // namespace lockstep::engine
