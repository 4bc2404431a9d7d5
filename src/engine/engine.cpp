// The public classes, as thin as they look: each call becomes a Request for the Core.
#include "lockstep/engine.hpp"

#include <algorithm>

#include "engine/connect.hpp"
#include "engine/core.hpp"
#include "engine/request.hpp"
#include "engine/wanted.hpp"
#include "negotiation/groups.hpp"

namespace lockstep {
namespace {

using collective::Kind;
using engine::all_to_all_request;
using engine::barrier_request;
using engine::Core;
using engine::pair_request;
using engine::reduction;
using engine::Request;
using engine::request_for;

Work submitted(const std::shared_ptr<Core>& core, Request request) {
  return {core->submit(std::move(request), /*background=*/true), core};
}

Result run_for_result(const std::shared_ptr<Core>& core, Request request) {
  return Work(core->submit(std::move(request), /*background=*/false), core).result();
}

// Element by element, one leaf per rank.
bool is_simple(const ReduceOptions& options) {
  return options.leaves.total == 0 && !options.result_type && !options.epilogue && options.op != ReduceOp::adasum;
}

// Nothing asked for that the short cut does not know.
bool is_plain(const ReduceOptions& options) {
  return is_simple(options) && !options.group.members() && options.prescale == 1.0 && options.postscale == 1.0;
}

engine::ExpressCall express_all_reduce(const TensorView& input, const TensorView& output,
                                       const ReduceOptions& options) {
  return {.kind = Kind::all_reduce,
          .input = &input,
          .output = &output,
          .op = options.op,
          .by_contributors = options.average_over_contributors};
}

}  // namespace

const std::vector<int>& Group::ranks() const {
  static const std::vector<int> world;
  return members_ ? members_->ranks : world;
}

void merge_timelines(const std::vector<std::string>& paths, const std::string& merged) {
  trace::merge_timelines(paths, merged);
}

Engine::Engine() : Engine(Options::from_environment()) {}
Engine::Engine(const Options& options) : core_(engine::connect(options)) {
  for (const std::vector<int>& ranks : options.groups) {
    const bool member = std::find(ranks.begin(), ranks.end(), options.rank) != ranks.end();
    groups_.push_back(member ? make_group(ranks) : Group());
  }
}
Engine::Engine(std::shared_ptr<engine::Core> core) : core_(std::move(core)) {}
Engine::~Engine() { core_->stop(); }

int Engine::rank() const noexcept { return core_->options().rank; }
int Engine::size() const noexcept { return core_->options().size; }
int Engine::local_rank() const noexcept { return core_->options().local_rank; }
int Engine::local_size() const noexcept { return core_->options().local_size; }

void Engine::all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  if (is_plain(options) && core_->run_express(express_all_reduce(input, output, options))) return;
  core_->run_to_end(reduction(Kind::all_reduce, input, output, options));
}
Work Engine::all_reduce_at_once(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  Core::OperationPtr rest;
  if (!is_plain(options) || !core_->run_express(express_all_reduce(input, output, options), &rest)) {
    return all_reduce_async(input, output, options);
  }
  return rest ? Work(std::move(rest), core_) : Work();
}
Work Engine::all_reduce_async(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  if (!is_simple(options)) return submitted(core_, reduction(Kind::all_reduce, input, output, options));
  return {core_->submit_all_reduce({.input = &input,
                                    .output = &output,
                                    .op = options.op,
                                    .prescale = options.prescale,
                                    .postscale = options.postscale,
                                    .by_contributors = options.average_over_contributors,
                                    .group = options.group.members()}),
          core_};
}

void Engine::all_reduce_in_step(const TensorView& tensor, const ReduceOptions& options) {
  if (!is_simple(options) || tensor.name.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "an all-reduce without a handle must have a name, and no leaves, epilogue or result type.");
  }
  core_->submit_all_reduce({.input = &tensor,
                            .output = &tensor,
                            .op = options.op,
                            .prescale = options.prescale,
                            .postscale = options.postscale,
                            .by_contributors = options.average_over_contributors,
                            .group = options.group.members(),
                            .of_step = true});
}

namespace {

Batch batch_of(std::span<const TensorPair> tensors, const ReduceOptions& options) {
  Batch batch;
  for (const TensorPair& pair : tensors) batch.all_reduce(pair.input, pair.output, options);
  return batch;
}

}  // namespace

// With an epilogue each rank does its own part, so its caller, who waits, does it: the engine's thread would only take
// a core from a peer.
void Engine::all_reduce(std::span<const TensorPair> tensors, const ReduceOptions& options) {
  const Batch batch = batch_of(tensors, options);
  if (!options.epilogue) return Work(core_->submit_together(*batch.requests_), core_).wait();
  Work(core_->submit_packed(*batch.requests_, /*background=*/false), core_).wait();
}
Work Engine::all_reduce_async(std::span<const TensorPair> tensors, const ReduceOptions& options) {
  return run_async(batch_of(tensors, options));
}

std::vector<Result> Engine::run(const Batch& batch) {
  const Work work = run_async(batch);
  work.wait();
  std::vector<Result> results;
  for (std::size_t i = 0; i < batch.size(); ++i) results.push_back(work.result(i));
  return results;
}
Work Engine::run_async(const Batch& batch) { return {core_->submit_together(*batch.requests_), core_}; }

void Engine::reduce(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options) {
  core_->run_to_end(reduction(Kind::reduce, input, output, options, root));
}
Work Engine::reduce_async(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options) {
  return submitted(core_, reduction(Kind::reduce, input, output, options, root));
}

Result Engine::reduce_scatter(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return run_for_result(core_, reduction(Kind::reduce_scatter, input, output, options));
}
Work Engine::reduce_scatter_async(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return submitted(core_, reduction(Kind::reduce_scatter, input, output, options));
}

void Engine::broadcast(const TensorView& tensor, int root, const Group& group) {
  core_->run_to_end(request_for(Kind::broadcast, tensor, tensor, group, root));
}
Work Engine::broadcast_async(const TensorView& tensor, int root, const Group& group) {
  return submitted(core_, request_for(Kind::broadcast, tensor, tensor, group, root));
}

Result Engine::all_gather(const TensorView& input, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::all_gather, input, output, group));
}
Work Engine::all_gather_async(const TensorView& input, const TensorView& output, const Group& group) {
  return submitted(core_, request_for(Kind::all_gather, input, output, group));
}

Result Engine::gather(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::gather, input, output, group, root));
}
Work Engine::gather_async(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return submitted(core_, request_for(Kind::gather, input, output, group, root));
}

Result Engine::scatter(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::scatter, input, output, group, root));
}
Work Engine::scatter_async(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return submitted(core_, request_for(Kind::scatter, input, output, group, root));
}

Result Engine::all_to_all(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                          const Group& group) {
  return run_for_result(core_, all_to_all_request(input, splits, output, group));
}
Work Engine::all_to_all_async(const TensorView& input, const std::vector<std::int64_t>& splits,
                              const TensorView& output, const Group& group) {
  return submitted(core_, all_to_all_request(input, splits, output, group));
}

void Engine::send(const TensorView& tensor, int receiver, int tag) {
  core_->run_to_end(pair_request(Kind::send, tensor, receiver, tag));
}
Work Engine::send_async(const TensorView& tensor, int receiver, int tag) {
  return submitted(core_, pair_request(Kind::send, tensor, receiver, tag));
}
void Engine::receive(const TensorView& tensor, int sender, int tag) {
  core_->run_to_end(pair_request(Kind::receive, tensor, sender, tag));
}
Work Engine::receive_async(const TensorView& tensor, int sender, int tag) {
  return submitted(core_, pair_request(Kind::receive, tensor, sender, tag));
}

void Engine::barrier(const std::string& name, const Group& group) {
  if (name.empty() && !group.members() && core_->run_express({.kind = Kind::barrier})) return;
  core_->run_to_end(barrier_request(name, group));
}
Work Engine::barrier_async(const std::string& name, const Group& group) {
  return submitted(core_, barrier_request(name, group));
}

int Engine::join(const Group& group) { return join_async(group).result().last_joined; }
Work Engine::join_async(const Group& group) { return submitted(core_, request_for(Kind::join, {}, {}, group)); }

Group Engine::make_group(const std::vector<int>& ranks) { return Group(core_->make_group(ranks)); }

Group Engine::group(std::size_t index) const {
  if (index >= groups_.size()) {
    throw Error(ErrorCode::invalid_argument, "there is no group " + std::to_string(index) +
                                                 " from the start: the options "
                                                 "had " +
                                                 std::to_string(groups_.size()) + ", counted from 0");
  }
  if (!groups_[index].members()) {
    throw Error(ErrorCode::invalid_argument, "rank " + std::to_string(rank()) + " does not belong to group " +
                                                 std::to_string(index) + " of the options");
  }
  return groups_[index];
}

void Engine::begin_step() { core_->begin_step(); }
void Engine::begin_exclusive_step() { core_->begin_step(/*exclusive=*/true); }
std::uint64_t Engine::end_step() { return core_->end_step(); }
void Engine::abort(const std::string& reason) { core_->abort(reason); }

Agreement Engine::agree() { return core_->agree(); }
std::unique_ptr<Engine> Engine::continue_with_survivors() {
  return std::unique_ptr<Engine>(new Engine(engine::connect_survivors(*core_)));
}

void Engine::start_timeline(const std::string& path, bool mark_steps, bool exact_path) {
  core_->recorder().timeline().start(path, rank(), {.mark_cycles = mark_steps, .exact_path = exact_path});
}
void Engine::stop_timeline() { core_->recorder().timeline().stop(); }
std::string Engine::flight_record() const { return core_->recorder().flight_record().text(rank(), "asked for"); }
std::vector<Counter> Engine::counters() const {
  std::vector<Counter> counters;
  for (const auto& sample : core_->recorder().counters().snapshot())
    counters.push_back({.name = sample.name, .kind = sample.kind, .value = sample.value});
  return counters;
}

void* Engine::allocate(std::size_t bytes) {
  auto* shared = core_->transport().shared();
  return shared != nullptr ? shared->allocate(bytes) : nullptr;
}
void Engine::deallocate(void* block) {
  auto* shared = core_->transport().shared();
  if (shared == nullptr) throw Error(ErrorCode::invalid_argument, "this engine has no heap: a world of one needs none");
  shared->deallocate(block);
}
bool Engine::holds(const void* data, std::size_t bytes) const {
  auto* shared = core_->transport().shared();
  return shared != nullptr && shared->place_of(data, bytes) != transport::kNowhere;
}
bool Engine::serve_allocations(const std::vector<std::size_t>& sizes, int (*meant)()) {
  return core_->served().serve(sizes, meant);
}

bool Engine::shares_memory() const noexcept { return size() > 1 && core_->transport().shared() != nullptr; }
Block Engine::make_block(std::size_t bytes, std::uint32_t users) {
  return Block(engine::SharedBlock::make(core_, bytes, users));
}
Block Engine::open_block(int owner, std::uint64_t place) {
  return Block(engine::SharedBlock::open(core_, owner, place));
}

Work::Work(std::shared_ptr<engine::Operation> operation, std::shared_ptr<engine::Core> core)
    : first_(std::move(operation)), core_(std::move(core)) {}

Work::Work(std::vector<std::shared_ptr<engine::Operation>> operations, std::shared_ptr<engine::Core> core)
    : others_(std::move(operations)), core_(std::move(core)) {
  if (others_.empty()) return;
  first_ = std::move(others_.front());
  others_.erase(others_.begin());
}

bool Work::poll() const { return wait_for(std::chrono::milliseconds(0)); }

void Work::wait() const {
  if (!first_) return;
  core_->wait(*first_);
  for (const auto& operation : others_) core_->wait(*operation);
  Core::check(*first_);
  for (const auto& operation : others_) Core::check(*operation);
}

bool Work::wait_for(std::chrono::milliseconds limit) const { return wait_until(limit, /*in_slices=*/false); }
bool Work::wait_slice(std::chrono::milliseconds limit) const { return wait_until(limit, /*in_slices=*/true); }

bool Work::wait_until(std::chrono::milliseconds limit, bool in_slices) const {
  const auto deadline = core_->transport().now() + limit;
  if (first_ && !core_->wait(*first_, deadline, in_slices)) return false;
  for (const auto& operation : others_) {
    if (!core_->wait(*operation, deadline, in_slices)) return false;
  }
  return true;
}

const std::shared_ptr<engine::Operation>& Work::at(std::size_t index) const {
  if (index >= size()) {
    throw Error(ErrorCode::invalid_argument, "there is no operation " + std::to_string(index) +
                                                 " in this handle: it has " + std::to_string(size()) +
                                                 ", counted from 0");
  }
  return index == 0 ? first_ : others_[index - 1];
}

Result Work::result(std::size_t index) const {
  wait();
  const auto& operation = at(index);
  return {.tensor = operation->result,
          .received = operation->received,
          .last_joined = operation->last_joined,
          .memory = operation};
}

std::exception_ptr Work::exception() const {
  for (std::size_t i = 0; i < size(); ++i) {
    if (auto found = exception(i)) return found;
  }
  return nullptr;
}

std::exception_ptr Work::exception(std::size_t index) const {
  const auto& operation = at(index);
  return operation->has_failed() ? std::make_exception_ptr(*operation->error) : nullptr;
}

}  // namespace lockstep
