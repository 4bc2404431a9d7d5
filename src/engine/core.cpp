#include "engine/core.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "base/cpu.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "collective/reduce_kernel.hpp"
#include "engine/patience.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using transport::Health;
using transport::NoticeRef;
using transport::Verdict;

constexpr auto kLongestSleep = std::chrono::milliseconds(50);
constexpr auto kHealthInterval = std::chrono::milliseconds(10);

// Counts up in every forked child, so that an engine can tell that it is a copy whose thread does not exist.
unsigned fork_generation() {
  static unsigned generation = 0;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  static_cast<void>(registered);
  return generation;
}

// gcc 12's thread sanitizer does not know the system call behind a wait on the steady clock.
auto system_deadline(std::chrono::milliseconds from_now) { return std::chrono::system_clock::now() + from_now; }

void check_request(const Request& request, int size) {
  if (request.kind == Kind::barrier) return;
  const TensorView& input = request.input;
  const TensorView& output = request.output;
  if (input.device != Device::cpu) throw Error(ErrorCode::invalid_argument, fmt::format("tensor '{}' is not on the CPU", input.name));
  if (input.shape != output.shape || input.dtype != output.dtype || input.strides != output.strides) {
    throw Error(ErrorCode::invalid_argument, fmt::format("input and output of '{}' must have the same type, shape and strides", input.name));
  }
  if (input.bytes() > 0) {
    if (input.data == nullptr || output.data == nullptr) {
      throw Error(ErrorCode::invalid_argument, fmt::format("tensor '{}' has {} bytes but no memory", input.name, input.bytes()));
    }
    const auto* first = static_cast<const std::byte*>(input.data);
    const auto* second = static_cast<const std::byte*>(output.data);
    if (first != second && first < second + input.bytes() && second < first + input.bytes()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("input and output of '{}' overlap; pass the same memory or two apart", input.name));
    }
  }
  if (request.kind == Kind::all_reduce && !collective::is_defined(input.dtype, request.op)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} of {} (tensor '{}') is not defined", name_of(request.op), name_of(input.dtype), input.name));
  }
  if (request.kind == Kind::broadcast && (request.root < 0 || request.root >= size)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("broadcast of '{}' from rank {}: there are ranks 0 to {}", input.name, request.root, size - 1));
  }
}

}  // namespace

Core::Core(const Options& options, std::unique_ptr<transport::Transport> transport)
    : options_(options),
      transport_(std::move(transport)),
      crowded_(options.local_size > usable_cores()),
      fork_generation_(fork_generation()),
      matcher_(transport_->size()) {
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  while (!arrived_) wake_.wait(lock);
}

Core::~Core() { stop(); }

// --- submitting

Core::OperationPtr Core::submit(Request request, bool background) {
  check_request(request, transport_->size());
  auto operation = std::make_shared<Operation>(std::move(request));
  operation->notice.detail =
      negotiation::describe(operation->request.kind, operation->request.input, operation->request.op, operation->request.root);
  operation->notice.head.signature = negotiation::signature_of(operation->notice.detail);
  operation->background = background;

  std::unique_lock lock(mutex_);
  refuse_if_unusable();
  assign_identity(*operation);
  stage(*operation);
  operation->submitted = Clock::now();
  pending_.emplace(operation->notice.head.id, operation);
  if (!operation->request.input.name.empty()) names_in_flight_[operation->request.input.name] = operation.get();
  if (in_step_) step_operations_.push_back(operation);
  queued_.push_back(operation);
  post_queued();
  if (background && background_++ == 0) wake_.notify_all();
  return operation;
}

void Core::refuse_if_unusable() const {
  if (fork_generation_ != fork_generation()) {
    throw Error(ErrorCode::invalid_argument,
                "this engine belongs to the parent process. Likely cause: a collective was called in a forked child (a DataLoader "
                "worker, multiprocessing). Call collectives only in the process that started the engine.");
  }
  if (ended_) throw *ended_;
}

void Core::assign_identity(Operation& operation) {
  const std::string& name = operation.request.input.name;
  Hasher id;
  if (name.empty()) {
    operation.order = unnamed_++;
    id.add(operation.order);
  } else {
    if (names_in_flight_.contains(name)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("an operation named '{}' is still under way. Wait for it first, or give this one another name.", name));
    }
    id.add(std::string_view(name));
    id.add(name_uses_[name]++);
  }
  operation.notice.head.id = id.value();
}

// Decides how the tensor reaches the peers: inside the notice, where it lies, or as a copy in shared memory. Over
// messages nothing is to be done.
void Core::stage(Operation& operation) {
  const Request& request = operation.request;
  transport::NoticeHead& head = operation.notice.head;
  const std::size_t bytes = request.kind == Kind::barrier ? 0 : request.input.bytes();
  if (bytes == 0) return;
  const bool gives = request.kind != Kind::broadcast || request.root == transport_->rank();
  if (bytes <= transport::kInlineBytes) {
    head.inline_bytes = static_cast<std::uint32_t>(bytes);
    if (gives) std::memcpy(head.inline_data, request.input.data, bytes);
    return;
  }
  transport::SharedMemory* shared = transport_->shared();
  if (shared == nullptr) return;
  head.input = shared->place_of(request.input.data, bytes);
  head.output = shared->place_of(request.output.data, bytes);
  // Peers write only the outputs of reductions; what a rank merely receives, it fetches itself.
  const bool reachable = head.input != transport::kNowhere && (head.output != transport::kNowhere || request.kind == Kind::broadcast);
  if (reachable || !gives) return;
  operation.staged = static_cast<std::byte*>(shared->allocate(bytes));
  if (operation.staged == nullptr) {
    throw Error(ErrorCode::system,
                fmt::format("no room for {} bytes of {} in the shared heap. Raise LOCKSTEP_HEAP_BYTES, or reduce in smaller pieces.", bytes,
                            text_of(operation)));
  }
  std::memcpy(operation.staged, request.input.data, bytes);
  head.input = head.output = shared->place_of(operation.staged, bytes);
}

bool Core::post_queued() {
  bool any = false;
  while (!queued_.empty()) {
    const OperationPtr operation = queued_.front();
    const auto position = transport_->post(operation->notice);
    if (!position) break;
    queued_.pop_front();
    any = true;
    const NoticeRef own{.head = &operation->notice.head, .detail = &operation->notice.detail, .position = *position};
    const auto& gathering = matcher_.arrive(transport_->rank(), own);
    if (gathering.complete()) begin(operation, gathering);
  }
  return any;
}

// --- matching and advancing

bool Core::take_notices() {
  bool any = false;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    while (const NoticeRef notice = transport_->next(peer)) {
      any = true;
      const auto& gathering = matcher_.arrive(peer, notice);
      if (gathering.complete()) begin(OperationPtr(pending_.at(notice.head->id)), gathering);
    }
  }
  return any;
}

void Core::begin(const OperationPtr& operation, const negotiation::Gathering& gathering) {
  if (!gathering.agreed()) {
    std::vector<negotiation::Statement> statements;
    for (std::size_t rank = 0; rank < gathering.arrivals.size(); ++rank) {
      statements.push_back({static_cast<int>(rank), gathering.arrivals[rank].detail});
    }
    const std::string name = negotiation::name_text(operation->request.input.name, operation->order);
    fail(operation, Error(ErrorCode::mismatch, negotiation::disagreement_text(name, statements)));
    return;
  }
  operation->algorithm = collective::choose(call_for(*operation, gathering));
  running_.push_back(operation);
}

collective::Call Core::call_for(const Operation& operation, const negotiation::Gathering& gathering) {
  const Request& request = operation.request;
  collective::Call call{.kind = request.kind,
                        .id = operation.notice.head.id,
                        .dtype = request.input.dtype,
                        .op = request.op,
                        .root = request.root,
                        .elements = request.kind == Kind::barrier ? 0 : static_cast<std::size_t>(request.input.elements()),
                        .parties = {},
                        .self = transport_->rank(),
                        .input = static_cast<const std::byte*>(request.input.data),
                        .output = static_cast<std::byte*>(request.output.data),
                        .transport = transport_.get()};
  transport::SharedMemory* shared = transport_->shared();
  for (std::size_t rank = 0; rank < gathering.arrivals.size(); ++rank) {
    const NoticeRef& notice = gathering.arrivals[rank];
    collective::Party party{.rank = static_cast<int>(rank), .input = nullptr, .output = nullptr, .carried = false, .position = notice.position};
    if (notice.head->inline_bytes > 0) {
      party.input = notice.head->inline_data;
      party.carried = true;
    } else if (shared != nullptr) {
      if (notice.head->input != transport::kNowhere) party.input = shared->at(party.rank, notice.head->input);
      if (notice.head->output != transport::kNowhere) party.output = shared->at(party.rank, notice.head->output);
    }
    call.parties.push_back(party);
  }
  return call;
}

bool Core::progress() {
  if (ended_) return false;
  bool any = post_queued();
  any |= take_notices();
  for (std::size_t i = 0; i < running_.size();) {
    const OperationPtr operation = running_[i];
    if (operation->algorithm->advance()) {
      finish(operation);  // takes it out of running_
      any = true;
    } else {
      ++i;
    }
  }
  if (const auto verdict = transport_->verdict()) end_world(*verdict);
  return any;
}

// --- ending

void Core::finish(const OperationPtr& operation) {
  const Request& request = operation->request;
  if (operation->staged != nullptr && request.kind != Kind::broadcast) {
    std::memcpy(request.output.data, operation->staged, request.output.bytes());
  }
  close(*operation);
  operation->state.store(Operation::State::done, std::memory_order_release);
  transport_->ring(transport_->rank());  // another thread of this process may wait for it
}

void Core::fail(const OperationPtr& operation, const Error& error) {
  close(*operation);
  operation->error = error;
  operation->state.store(Operation::State::failed, std::memory_order_release);
  transport_->ring(transport_->rank());
}

// Gives back all that the operation held here.
void Core::close(Operation& operation) {
  if (operation.staged != nullptr) {
    transport_->shared()->deallocate(operation.staged);
    operation.staged = nullptr;
  }
  const std::uint64_t id = operation.notice.head.id;
  if (const auto* gathering = matcher_.find(id)) {
    for (std::size_t rank = 0; rank < gathering->arrivals.size(); ++rank) {
      const NoticeRef& notice = gathering->arrivals[rank];
      if (notice && static_cast<int>(rank) != transport_->rank()) transport_->release(static_cast<int>(rank), notice.position);
    }
    matcher_.forget(id);
  }
  if (!operation.request.input.name.empty()) names_in_flight_.erase(operation.request.input.name);
  std::erase_if(running_, [&](const OperationPtr& other) { return other.get() == &operation; });
  std::erase_if(queued_, [&](const OperationPtr& other) { return other.get() == &operation; });
  if (operation.background) --background_;
  pending_.erase(id);
}

void Core::end_world(const Verdict& verdict) {
  transport_->quiesce();
  ended_ = Error(verdict.code, verdict.text);
  while (!pending_.empty()) {
    const OperationPtr operation = pending_.begin()->second;
    fail(operation, *ended_);
  }
}

// --- waiting

bool Core::wait(Operation& operation, std::optional<Clock::time_point> limit) {
  Patience patience(crowded_);
  auto advance = [&] {
    std::lock_guard lock(mutex_);
    return progress();
  };
  while (!operation.ended()) {
    if (advance()) {
      patience.reset();
      continue;
    }
    if (patience.wait_awake()) continue;
    auto nap = std::chrono::nanoseconds(kLongestSleep);
    if (limit) {
      const auto left = *limit - Clock::now();
      if (left <= left.zero()) return operation.ended();
      nap = std::min(nap, std::chrono::nanoseconds(left));
    }
    transport_->sleep(nap, [&] { return advance() || operation.ended(); });
    std::lock_guard lock(mutex_);
    look_after_peers();
  }
  return true;
}

void Core::check(const Operation& operation) {
  if (operation.state.load(std::memory_order_acquire) == Operation::State::failed) throw *operation.error;
}

// Called while something waits. A peer that died or was stopped ends the world; one that left in good order ends only the
// operations that still need it.
void Core::look_after_peers() {
  const auto now = Clock::now();
  if (now - looked_after_ < kHealthInterval || ended_) return;
  looked_after_ = now;
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    const Health health = transport_->health(peer);
    if (health == Health::alive) continue;
    if (health != Health::left) {
      const std::string doing = pending_.empty() ? "nothing" : text_of(*pending_.begin()->second);
      transport_->pronounce(
          {.code = ErrorCode::peer_lost,
           .rank = peer,
           .text = health == Health::dead
                       ? fmt::format("lost rank {} (pid {}): the process died. Noticed by rank {} while waiting in {}. Look at the output of "
                                     "rank {} for the cause.",
                                     peer, transport_->process_of(peer), transport_->rank(), doing, peer)
                       : fmt::format("lost rank {} (pid {}): the process is stopped (state T) and did not go on for several seconds. Noticed by "
                                     "rank {} while waiting in {}. Somebody sent it SIGSTOP, or it reads from a terminal in the background.",
                                     peer, transport_->process_of(peer), transport_->rank(), doing)});
      end_world(*transport_->verdict());
      return;
    }
    take_notices();  // what it announced before it left still counts
    std::vector<OperationPtr> doomed;
    for (const auto& [id, operation] : pending_) {
      const auto* gathering = matcher_.find(id);
      if (gathering != nullptr && !gathering->complete() && !gathering->arrivals[static_cast<std::size_t>(peer)]) doomed.push_back(operation);
    }
    for (const OperationPtr& operation : doomed) {
      fail(operation, Error(ErrorCode::peer_lost,
                            fmt::format("lost rank {} (pid {}): it stopped its engine, but {} on rank {} still needs it. Likely cause: the ranks "
                                        "make a different number of calls (unequal data?).",
                                        peer, transport_->process_of(peer), text_of(*operation), transport_->rank())));
    }
  }
  report_stalls();
}

void Core::report_stalls() {
  const auto now = Clock::now();
  for (const auto& [id, operation] : pending_) {
    const auto waited = now - operation->submitted;
    if (waited < options_.stall_warning || (operation->stall_reported && waited < options_.stall_limit)) continue;
    const auto* gathering = matcher_.find(id);
    const auto missing = gathering != nullptr ? gathering->missing() : std::vector<int>{};
    const double seconds = std::chrono::duration<double>(waited).count();
    const std::string what = missing.empty()
                                 ? fmt::format("{} is not complete after {:.0f} s, though all ranks have submitted it", text_of(*operation), seconds)
                                 : fmt::format("{} has waited {:.0f} s for rank{} {}", text_of(*operation), seconds,
                                               missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    if (waited >= options_.stall_limit) {
      transport_->pronounce({.code = ErrorCode::timeout,
                             .rank = missing.empty() ? -1 : missing.front(),
                             .text = what + ". The limit is LOCKSTEP_STALL_LIMIT. Likely cause: that rank took another path in the program."});
      end_world(*transport_->verdict());
      return;
    }
    operation->stall_reported = true;
    log::warn(transport_->rank(), what);
  }
}

// --- the engine's own thread

void Core::run() {
  transport_->arrive();
  std::unique_lock lock(mutex_);
  arrived_ = true;
  wake_.notify_all();
  while (!stopping_) {
    if (background_ > 0) {
      run_background(lock);
    } else {
      // Nothing to do but to keep reading notices now and then, so that a peer far ahead does not run out of room.
      wake_.wait_until(lock, system_deadline(kLongestSleep));
      progress();
    }
  }
  lock.unlock();
  transport_->leave();
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
}

// --- steps, abort, stop

void Core::begin_step() {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  if (in_step_) throw Error(ErrorCode::invalid_argument, "begin_step was called twice without end_step between");
  in_step_ = true;
  step_operations_.clear();
}

std::uint64_t Core::end_step() {
  std::vector<OperationPtr> operations;
  {
    std::lock_guard lock(mutex_);
    if (!in_step_) throw Error(ErrorCode::invalid_argument, "end_step was called without begin_step");
    in_step_ = false;
    operations.swap(step_operations_);
  }
  for (const OperationPtr& operation : operations) wait(*operation);
  for (const OperationPtr& operation : operations) check(*operation);
  std::lock_guard lock(mutex_);
  return ++steps_;
}

void Core::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  refuse_if_unusable();
  transport_->pronounce(
      {.code = ErrorCode::aborted, .rank = transport_->rank(), .text = fmt::format("rank {} aborted the job: {}", transport_->rank(), reason)});
  end_world(*transport_->verdict());
}

void Core::stop() {
  if (fork_generation_ != fork_generation()) {
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
      fail(operation, Error(ErrorCode::aborted, fmt::format("the engine of rank {} was stopped before {} was complete", transport_->rank(),
                                                            text_of(*operation))));
    }
    wake_.notify_all();
  }
  transport_->ring(transport_->rank());
  thread_.join();
}

std::string Core::text_of(const Operation& operation) const {
  const Request& request = operation.request;
  return fmt::format("{} {}", collective::name_of(request.kind), negotiation::name_text(request.input.name, operation.order));
}

}  // namespace lockstep::engine
