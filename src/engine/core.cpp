#include "engine/core.hpp"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/cpu.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "engine/request.hpp"
#include "engine/staging.hpp"
#include "heap/preloaded.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using transport::NoticeRef;
using transport::Verdict;

constexpr auto kLongestSleep = std::chrono::milliseconds(50);
// For the rest of what has begun to arrive. Where that takes longer, to be woken at its end is a small part of it.
constexpr auto kAwakeForRest = std::chrono::milliseconds(4);

// Counts up in every forked child, so that an engine can tell that it is a copy whose thread does not exist.
unsigned fork_generation() {
  static unsigned generation = 0;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  static_cast<void>(registered);
  return generation;
}

// gcc 12's thread sanitizer does not know the system call behind a wait on the steady clock.
auto system_deadline(std::chrono::milliseconds from_now) { return std::chrono::system_clock::now() + from_now; }

}  // namespace

Core::Core(const Options& options, std::unique_ptr<transport::Transport> transport, Drive drive)
    : options_(options),
      transport_(std::move(transport)),
      crowded_(options.local_size > usable_cores_of_job()),
      expressive_(transport_->size() > 1 && transport_->shared() != nullptr),
      patience_(drive == Drive::owner ? Patience::none() : Patience(crowded_)),
      fork_generation_(fork_generation()),
      served_(heap::find_preloaded(), transport_->shared(), transport_->rank()),
      groups_(transport_->rank(), transport_->size()),
      ended_ranks_(static_cast<std::size_t>(transport_->size()), fusion::kNoStep),
      census_(threads_at_rest) {
  const auto ranks = static_cast<std::size_t>(transport_->size());
  ended_before_.resize(ranks);
  ended_with_.resize(ranks);
  met_in_step_.resize(ranks);
  offers_seen_.resize(ranks);
  for (int rank = 0; expressive_ && rank < transport_->size(); ++rank)
    boards_.push_back(&transport_->shared()->board(rank));
  express_leaves_.resize(ranks);
  express_outputs_.resize(ranks);
  express_words_.resize(ranks);
  express_parties_.resize(ranks);
  for (std::size_t i = 0; i < ranks; ++i) express_parties_[i].rank = static_cast<int>(i);
  if (!options.timeline.empty())
    recorder_.timeline().start(options.timeline, options.rank, {.mark_cycles = options.timeline_mark_steps});
  if (drive == Drive::owner) {
    census_ = [](std::span<const pid_t>) { return 0; };  // the owner is all there is
    transport_->arrive();
    return;
  }
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  while (!arrived_) wake_.wait(lock);
}

Core::~Core() { stop(); }

// --- submitting

Core::OperationPtr Core::submit(Request request, bool background) {
  std::lock_guard lock(mutex_);
  return submit_locked(std::move(request), background);
}

Core::OperationPtr Core::submit_all_reduce(const Reduce& wanted) {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  if (wanted.of_step && !in_step_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' was submitted as a part of a step outside of any. Call begin_step first.",
                            wanted.input->name));
  }
  if (OperationPtr planned = submit_planned(wanted)) return planned;
  Request request;
  request.kind = Kind::all_reduce;
  request.input = *wanted.input;
  request.output = *wanted.output;
  request.op = wanted.op;
  request.prescale = wanted.prescale;
  request.postscale = wanted.postscale;
  request.by_contributors = wanted.by_contributors;
  request.group = wanted.group;
  const OperationPtr operation = prepare(std::move(request), /*background=*/true);
  operation->plannable = true;
  operation->of_step = wanted.of_step;
  announce(operation);
  return operation;
}

std::vector<Core::OperationPtr> Core::submit_together(std::vector<Request> requests, bool background) {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> operations;
  std::set<NameKey> names;
  try {
    for (Request& request : requests) {
      operations.push_back(prepare(std::move(request), background));
      const Request& prepared = operations.back()->request;
      if (!prepared.input.name.empty() && !names.insert(operations.back()->key).second) {
        refuse_name_twice(prepared.input.name);
      }
    }
  } catch (const Error&) {
    for (const OperationPtr& operation : operations) drop_staged(*operation, *transport_);
    throw;
  }
  for (const OperationPtr& operation : operations) announce(operation);
  return operations;
}

Core::OperationPtr Core::submit_locked(Request request, bool background) {
  OperationPtr operation = prepare(std::move(request), background);
  announce(operation);
  return operation;
}

// Everything that can be refused is refused here, before the operation has used up a number: the peers would wait for
// it.
Core::OperationPtr Core::prepare(Request request, bool background) {
  refuse_if_unusable();
  if (!request.group) request.group = groups_.world();
  complete_request(request, transport_->rank());
  check_request(request, transport_->rank());
  auto operation = std::make_shared<Operation>(std::move(request));
  announce_in(operation->notice, operation->request);
  operation->background = background;
  if (has_joined(operation->request.group->id, transport_->rank())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} was submitted after join. Wait for join to return first.", text_of(*operation)));
  }
  if (operation->request.kind == Kind::join && in_step_ && operation->request.group->id == negotiation::kWorld) {
    throw Error(ErrorCode::invalid_argument, "join was called inside a step. Call end_step first.");
  }
  if (!counts_by_order(operation->request)) operation->key = name_key(operation->request);
  if (!counts_by_order(operation->request) && is_in_flight(operation->key, operation->request.input.name)) {
    refuse_name_in_flight(operation->request.input.name);
  }
  tell_choice();
  stage(*operation, *transport_, background || crowded_ ? Way::copied : Way::relayed);
  // Announced all the same, so that every rank's operation fails at once instead of waiting for this one's.
  if (operation->notice.detail.no_room != 0) operation->notice.head.signature = ~operation->notice.head.signature;
  return operation;
}

// Whenever more is known of the network.
void Core::tell_choice() {
  const std::size_t known = transport_->bytes_per_trip();
  if (known == told_trip_) return;
  told_trip_ = known;
  log::info(transport_->rank(), choice_text(*transport_));
}

void Core::announce(const OperationPtr& operation) {
  dissolve_bucket_under(*operation);
  if (belongs_to_step(operation->of_step) && !operation->request.input.name.empty()) operation->step = step_;
  if (operation->step != fusion::kNoStep && operation->request.group->id == negotiation::kWorld) ++named_in_step_;
  operation->submitted = transport_->now();
  if (operation->request.kind == Kind::join) {
    const std::int64_t when = operation->submitted.time_since_epoch().count();
    std::memcpy(operation->notice.head.inline_data, &when, sizeof when);
  }
  enter(operation);
}

void Core::enter(const OperationPtr& operation) {
  if (nothing_under_way()) operation->notice.head.flags |= transport::kAlone;
  assign_identity(*operation);
  pending_.emplace(operation->notice.head.id, operation);
  if (!operation->request.input.name.empty()) names_in_flight_.insert(operation->key);
  if (belongs_to_step(operation->of_step) || operation->step != fusion::kNoStep) step_operations_.push_back(operation);
  if (operation->trace.kind == nullptr) {  // otherwise it was submitted as a part of a bucket
    learn_from(operation);
    record_submission(*operation);
  }
  if (operation->background) {
    ++background_;
    wake_thread();
  }
  queued_.push_back(operation);
  take_offers_of(*operation);
  post_queued();
}

void Core::record_submission(Operation& operation) {
  const Request& request = operation.request;
  recorder_.submitted(operation.trace, name_of(request.kind), request.input.name, operation.notice.head.id,
                      request.input.bytes(), request.group->ranks.size());
}

bool Core::is_forked_copy() const { return fork_generation_ != fork_generation(); }

void Core::refuse_name_twice(const std::string& name) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("two tensors of one group are named '{}'. Give each a name of its own.", name));
}

void Core::refuse_name_in_flight(const std::string& name) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("an operation named '{}' is still under way. Wait for it first, or give this one another name.",
                  name));
}

void Core::refuse_if_unusable() const {
  if (is_forked_copy()) {
    throw Error(ErrorCode::invalid_argument,
                "this engine belongs to the parent process. Likely cause: a collective was called in a forked child (a "
                "DataLoader "
                "worker, multiprocessing). Call collectives only in the process that started the engine.");
  }
  if (ended_) throw *ended_;
}

// The n-th use of a name meets the n-th use on the other ranks; so does the n-th operation without one, and the n-th
// message of a sender to a receiver under one tag. Names used inside a step are counted in each step anew, because a
// rank may leave some of them out.
void Core::assign_identity(Operation& operation) {
  const Request& request = operation.request;
  Series& series = series_[request.group->id];
  if (counts_by_order(request)) {
    operation.order = series.unnamed++;
    operation.notice.head.number = operation.order;
    operation.notice.head.id = identity_by_order(request.group->id, series.joins, operation.order);
    return;
  }
  if (operation.step == fusion::kNoStep) {
    operation.order = series.uses[operation.key]++;
  } else {
    if (series.step != operation.step) series.uses_in_step.clear();
    series.step = operation.step;
    operation.order = series.uses_in_step[operation.key]++ + uses_in_bucket(operation);
    operation.notice.head.flags |= transport::kInStep;
    operation.notice.head.number = operation.step;
  }
  operation.notice.head.id = identity_by_name(operation.key, series.joins, operation.step, operation.order);
}

bool Core::post_queued() {
  bool any = false;
  while (!queued_.empty()) {
    const OperationPtr operation = queued_.front();
    const auto position = operation->attached.empty() ? transport_->post(operation->notice)
                                                      : transport_->post_with(operation->notice, operation->attached);
    if (!position) break;
    queued_.pop_front();
    any = true;
    ++activity_;
    if (operation->ended()) continue;  // a message only: nobody answers
    const NoticeRef own{.head = &operation->notice.head,
                        .detail = &operation->notice.detail,
                        .position = *position,
                        .attached = operation->attached};
    matcher_.arrive(transport_->rank(), members_of(operation->request, transport_->rank()), own);
    if (operation->request.kind == Kind::join) note_join(transport_->rank(), operation->request.group);
    if (operation->request.kind == Kind::end_step) note_end(transport_->rank(), operation->notice.head);
    begin_if_complete(operation->notice.head.id);
  }
  return any;
}

negotiation::MembersPtr Core::make_group(std::vector<int> ranks) {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  auto members = groups_.make(std::move(ranks));
  // Everybody must know before the first operation whether it concerns him, also ranks that are not members. Notices
  // are read in order, so it is enough to announce the group first.
  Request request;
  request.kind = Kind::new_group;
  request.group = members;
  auto operation = std::make_shared<Operation>(std::move(request));
  announce_in(operation->notice, operation->request);
  const auto bitmap = negotiation::Groups::bitmap_of(*members);
  operation->notice.head.inline_bytes = static_cast<std::uint16_t>(bitmap.size());
  std::memcpy(operation->notice.head.inline_data, bitmap.data(), bitmap.size());
  operation->submitted = transport_->now();
  operation->key = name_key(operation->request);
  assign_identity(*operation);
  pending_.emplace(operation->notice.head.id, operation);
  queued_.push_back(operation);
  post_queued();
  return members;
}

// --- ending

void Core::finish(const OperationPtr& operation) {
  unstage(*operation);
  if (operation->result.data == nullptr && !operation->memory) operation->result = operation->request.output;
  recorder_.done(operation->trace);
  if (operation->request.kind == Kind::bucket) finish_members(*operation);
  close(*operation);
  operation->state.store(Operation::State::done, std::memory_order_release);
  transport_->ring(transport_->rank());  // another thread of this process may wait for it
}

void Core::fail(const OperationPtr& operation, const Error& error) {
  const auto* gathering = matcher_.find(operation->notice.head.id);
  if (gathering != nullptr) record_waiting(*operation, gathering->missing());
  recorder_.failed(operation->trace, error.what());
  if (operation->request.kind == Kind::bucket) fail_members(*operation, error);
  close(*operation);
  operation->error = error;
  operation->state.store(Operation::State::failed, std::memory_order_release);
  transport_->ring(transport_->rank());
}

// Gives back all that the operation held here. From now on nobody touches its tensors.
void Core::close(Operation& operation) {
  ++activity_;
  drop_staged(operation, *transport_);
  const std::uint64_t id = operation.notice.head.id;
  forget_gathering(id);
  if (!operation.request.input.name.empty()) names_in_flight_.erase(operation.key);
  std::erase_if(running_, [&](const OperationPtr& other) { return other.get() == &operation; });
  operation.algorithm.reset();
  std::erase_if(queued_, [&](const OperationPtr& other) { return other.get() == &operation; });
  if (operation.background) --background_;
  pending_.erase(id);
}

void Core::forget_gathering(std::uint64_t id) {
  const auto* gathering = matcher_.find(id);
  if (gathering == nullptr) return;
  for (std::size_t i = 0; i < gathering->arrivals.size(); ++i) {
    const int rank = gathering->members->ranks[i];
    if (gathering->arrivals[i] && gathering->arrivals[i].offer == nullptr && rank != transport_->rank())
      transport_->release(rank, gathering->arrivals[i].position);
  }
  matcher_.forget(id);
}

void Core::end_world(const Verdict& verdict) {
  transport_->quiesce();
  ended_ = Error(verdict.code, verdict.text);
  while (!pending_.empty()) {
    const OperationPtr operation = pending_.begin()->second;
    if (transport::Messages* messages = transport_->messages()) messages->abandon(operation->notice.head.id);
    fail(operation, *ended_);
  }
  fail_filling_buckets(*ended_);
  if (!options_.flight_directory.empty()) {
    recorder_.flight_record().write_file(options_.flight_directory, transport_->rank(), verdict.text);
  }
}

// --- waiting

bool Core::wait(Operation& operation, std::optional<Clock::time_point> limit, bool in_slices) {
  if (operation.ended()) return true;
  Waiter waiter(*this, operation);
  if (in_slices) waiter.resume();
  const bool ended = wait_on(waiter, operation, limit, in_slices);
  waiter.leave(/*for_a_moment=*/in_slices && !ended);
  return ended;
}

// What comes by messages is awaited awake, for a while, where nobody else wants the core.
Patience Core::patience_of(const Waiter& waiter) {
  // A slice that goes on with a wait has been awake for long enough already.
  if (waiter.rounds != 0) return Patience::none();
  if (crowded_ || transport_->messages() == nullptr) return patience_;
  if (contention_.is_wanted_by_others()) return Patience(/*crowded=*/true);
  Patience patience = patience_;
  patience.stay_awake_for(transport_->answer_time());
  patience.measure();
  return patience;
}

bool Core::wait_on(Waiter& waiter, Operation& operation, std::optional<Clock::time_point> limit, bool in_slices) {
  Patience patience = Patience::none();
  const std::uint64_t arrivals = transport_->arrivals();
  std::chrono::nanoseconds locked_out{0};
  auto advance = [&] {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
      const auto began = std::chrono::steady_clock::now();
      lock.lock();
      locked_out += std::chrono::steady_clock::now() - began;
    }
    return progress();
  };
  {
    std::lock_guard lock(mutex_);
    dissolve_if_awaited(operation);
    patience = patience_of(waiter);
  }
  const auto note_contention = [&] {
    const auto awake = patience.take_measured();
    if (!awake) return;
    // To be locked out was this engine's own doing.
    const auto time = std::max(awake->time() - std::exchange(locked_out, {}), std::chrono::nanoseconds(0));
    const auto ran = awake->time_on_core();
    std::lock_guard lock(mutex_);
    contention_.note(time, ran);
  };
  while (!operation.ended()) {
    if (advance()) {
      patience.reset();
      continue;
    }
    if (patience.is_measured() && transport_->arrivals() != arrivals) patience.stay_awake_for_rest(kAwakeForRest);
    if (patience.wait_awake()) continue;
    note_contention();
    auto nap = std::chrono::nanoseconds(kLongestSleep);
    if (limit) {
      const auto left = *limit - transport_->now();
      if (left <= left.zero()) return operation.ended();
      nap = std::min(nap, std::chrono::nanoseconds(left));
    }
    transport_->sleep(nap, [&] { return advance() || operation.ended(); });
    std::lock_guard lock(mutex_);
    look_after_peers();
    look_after_buckets(/*waiting=*/true);
    if (!limit || in_slices) stand_still(waiter);
  }
  note_contention();
  return true;
}

void Core::check(const Operation& operation) {
  if (operation.has_failed()) throw *operation.error;
}

// --- the engine's own thread

void Core::run() {
  transport_->arrive();
  std::unique_lock lock(mutex_);
  arrived_ = true;
  own_thread_ = this_thread();
  wake_.notify_all();
  while (!stopping_) {
    ++own_rounds_;
    if (ended_) {
      wake_.wait(lock);  // there is nothing more to come
    } else if (background_ > 0) {
      run_background(lock);
    } else {
      // Nothing to do but to keep reading notices now and then, so that a peer far ahead does not run out of room.
      idle_ = true;
      wake_.wait_until(lock, system_deadline(kLongestSleep));
      idle_ = false;
      progress();
      look_after_buckets(/*waiting=*/false);
    }
  }
  lock.unlock();
  transport_->leave();
}

void Core::wake_thread() {
  if (idle_) wake_.notify_all();
  idle_ = false;
}

// Drives the operations that nobody waits for. It does not spin: the cores belong to the program's own work.
void Core::run_background(std::unique_lock<std::mutex>& lock) {
  if (progress()) return;
  lock.unlock();
  transport_->sleep(kLongestSleep, [&] {
    std::lock_guard relock(mutex_);
    return progress() || stopping_;
  });
  lock.lock();
  look_after_peers();
  look_after_buckets(/*waiting=*/false);
}

void Core::tick() {
  std::lock_guard lock(mutex_);
  if (progress() || background_ == 0) return;
  look_after_peers();
  look_after_buckets(/*waiting=*/false);
}

// --- abort, stop

void Core::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  transport_->pronounce({.code = ErrorCode::aborted,
                         .rank = transport_->rank(),
                         .text = fmt::format("rank {} aborted the job: {}", transport_->rank(), reason)});
  end_world(*transport_->verdict());
}

void Core::stop() {
  if (is_forked_copy()) {
    // A forked child's copy: the thread does not exist here, and the peers are the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    progress();
    if (!ended_) ended_ = Error(ErrorCode::invalid_argument, "the engine has been stopped");
    while (!pending_.empty()) {
      const OperationPtr operation = pending_.begin()->second;
      fail(operation, Error(ErrorCode::aborted, fmt::format("the engine of rank {} was stopped before {} was complete",
                                                            transport_->rank(), text_of(*operation))));
    }
    fail_filling_buckets(*ended_);
    wake_.notify_all();
  }
  transport_->ring(transport_->rank());
  if (thread_.joinable()) {
    thread_.join();
  } else {
    transport_->leave();
  }
  served_.retire();
  recorder_.timeline().stop();
}

std::string Core::text_of(const Operation& operation) const {
  const Request& request = operation.request;
  if (request.kind == Kind::bucket) return text_of_bucket(operation);
  return fmt::format("{} {}", collective::name_of(request.kind),
                     negotiation::name_text(request.input.name, operation.order));
}

}  // namespace lockstep::engine
