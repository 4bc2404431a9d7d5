// The public classes, as thin as they look: each call becomes a Request for the Core.
#include "lockstep/engine.hpp"

#include "engine/connect.hpp"
#include "engine/core.hpp"
#include "engine/request.hpp"
#include "negotiation/groups.hpp"

namespace lockstep {
namespace {

using collective::Kind;
using engine::Core;
using engine::Request;

Work run_async(const std::shared_ptr<Core>& core, Request request) {
  return {core->submit(std::move(request), /*background=*/true), core};
}

Result run_for_result(const std::shared_ptr<Core>& core, Request request) {
  return Work(core->submit(std::move(request), /*background=*/false), core).result();
}

Request request_for(Kind kind, const TensorView& input, const TensorView& output, const Group& group, int root = -1) {
  Request request;
  request.kind = kind;
  request.input = input;
  request.output = output;
  request.root = root;
  request.group = group.members();
  return request;
}

Request reduction(Kind kind, const TensorView& input, const TensorView& output, const ReduceOptions& options,
                  int root = -1) {
  Request request = request_for(kind, input, output, options.group, root);
  request.op = options.op;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  request.by_contributors = options.average_over_contributors;
  request.rounded_to = options.result_type;
  request.epilogue = options.epilogue;
  if (options.leaves.total != 0) take_partials(request, options.leaves);
  return request;
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

Request barrier_request(const std::string& name, const Group& group) {
  TensorView nothing;
  nothing.name = name;
  return request_for(Kind::barrier, nothing, {}, group);
}

Request all_to_all_request(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                           const Group& group, int size) {
  Request request = request_for(Kind::all_to_all, input, output, group);
  request.splits = splits;
  if (!splits.empty()) return request;
  const auto parts = static_cast<std::int64_t>(group.members() ? group.ranks().size() : static_cast<std::size_t>(size));
  const std::int64_t rows = input.shape.empty() ? 1 : input.shape.front();
  if (rows % parts != 0) {
    throw Error(ErrorCode::invalid_argument, "all-to-all of '" + input.name + "': " + std::to_string(rows) +
                                                 " rows do not divide evenly among " + std::to_string(parts) +
                                                 " ranks. Pass splits.");
  }
  request.splits.assign(static_cast<std::size_t>(parts), rows / parts);
  return request;
}

Request pair_request(Kind kind, const TensorView& tensor, int sender, int receiver, int tag) {
  // A pair is matched by its ranks and tag; a name would only get in the way.
  TensorView unnamed = tensor;
  unnamed.name.clear();
  Request request =
      kind == Kind::send ? request_for(kind, unnamed, {}, {}, sender) : request_for(kind, unnamed, unnamed, {}, sender);
  request.partner = kind == Kind::send ? receiver : sender;
  request.receiver = receiver;
  request.tag = tag;
  return request;
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
Engine::Engine(const Options& options) : core_(engine::connect(options)) {}
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
  if (!is_simple(options)) return run_async(core_, reduction(Kind::all_reduce, input, output, options));
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

void Engine::all_reduce(std::span<const TensorPair> tensors, const ReduceOptions& options) {
  all_reduce_async(tensors, options).wait();
}
Work Engine::all_reduce_async(std::span<const TensorPair> tensors, const ReduceOptions& options) {
  std::vector<Request> requests;
  requests.reserve(tensors.size());
  for (const TensorPair& pair : tensors) {
    requests.push_back(reduction(Kind::all_reduce, pair.input, pair.output, options));
    if (!options.epilogue) continue;
    requests.back().epilogue = [epilogue = options.epilogue, index = requests.size() - 1](ReducedSlice slice) {
      slice.tensor = index;
      epilogue(slice);
    };
  }
  return {core_->submit_together(std::move(requests)), core_};
}

void Engine::reduce(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options) {
  core_->run_to_end(reduction(Kind::reduce, input, output, options, root));
}
Work Engine::reduce_async(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options) {
  return run_async(core_, reduction(Kind::reduce, input, output, options, root));
}

Result Engine::reduce_scatter(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return run_for_result(core_, reduction(Kind::reduce_scatter, input, output, options));
}
Work Engine::reduce_scatter_async(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return run_async(core_, reduction(Kind::reduce_scatter, input, output, options));
}

void Engine::broadcast(const TensorView& tensor, int root, const Group& group) {
  core_->run_to_end(request_for(Kind::broadcast, tensor, tensor, group, root));
}
Work Engine::broadcast_async(const TensorView& tensor, int root, const Group& group) {
  return run_async(core_, request_for(Kind::broadcast, tensor, tensor, group, root));
}

Result Engine::all_gather(const TensorView& input, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::all_gather, input, output, group));
}
Work Engine::all_gather_async(const TensorView& input, const TensorView& output, const Group& group) {
  return run_async(core_, request_for(Kind::all_gather, input, output, group));
}

Result Engine::gather(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::gather, input, output, group, root));
}
Work Engine::gather_async(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_async(core_, request_for(Kind::gather, input, output, group, root));
}

Result Engine::scatter(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_for_result(core_, request_for(Kind::scatter, input, output, group, root));
}
Work Engine::scatter_async(const TensorView& input, int root, const TensorView& output, const Group& group) {
  return run_async(core_, request_for(Kind::scatter, input, output, group, root));
}

Result Engine::all_to_all(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                          const Group& group) {
  return run_for_result(core_, all_to_all_request(input, splits, output, group, size()));
}
Work Engine::all_to_all_async(const TensorView& input, const std::vector<std::int64_t>& splits,
                              const TensorView& output, const Group& group) {
  return run_async(core_, all_to_all_request(input, splits, output, group, size()));
}

void Engine::send(const TensorView& tensor, int receiver, int tag) {
  core_->run_to_end(pair_request(Kind::send, tensor, rank(), receiver, tag));
}
Work Engine::send_async(const TensorView& tensor, int receiver, int tag) {
  return run_async(core_, pair_request(Kind::send, tensor, rank(), receiver, tag));
}
void Engine::receive(const TensorView& tensor, int sender, int tag) {
  core_->run_to_end(pair_request(Kind::receive, tensor, sender, rank(), tag));
}
Work Engine::receive_async(const TensorView& tensor, int sender, int tag) {
  return run_async(core_, pair_request(Kind::receive, tensor, sender, rank(), tag));
}

void Engine::barrier(const std::string& name, const Group& group) {
  if (name.empty() && !group.members() && core_->run_express({.kind = Kind::barrier})) return;
  core_->run_to_end(barrier_request(name, group));
}
Work Engine::barrier_async(const std::string& name, const Group& group) {
  return run_async(core_, barrier_request(name, group));
}

int Engine::join(const Group& group) { return join_async(group).result().last_joined; }
Work Engine::join_async(const Group& group) { return run_async(core_, request_for(Kind::join, {}, {}, group)); }

Group Engine::make_group(const std::vector<int>& ranks) { return Group(core_->make_group(ranks)); }

void Engine::begin_step() { core_->begin_step(); }
void Engine::begin_exclusive_step() { core_->begin_step(/*exclusive=*/true); }
std::uint64_t Engine::end_step() { return core_->end_step(); }
void Engine::abort(const std::string& reason) { core_->abort(reason); }

Agreement Engine::agree() { return core_->agree(); }
std::unique_ptr<Engine> Engine::continue_with_survivors() {
  return std::unique_ptr<Engine>(new Engine(engine::connect_survivors(*core_)));
}

void Engine::start_timeline(const std::string& path, bool mark_steps) {
  core_->recorder().timeline().start(path, rank(), mark_steps);
}
void Engine::stop_timeline() { core_->recorder().timeline().stop(); }
std::string Engine::flight_record() const { return core_->recorder().flight_record().text(rank(), "asked for"); }

void* Engine::allocate(std::size_t bytes) {
  auto* shared = core_->transport().shared();
  return shared != nullptr ? shared->allocate(bytes) : nullptr;
}
void Engine::deallocate(void* block) {
  auto* shared = core_->transport().shared();
  if (shared == nullptr) throw Error(ErrorCode::invalid_argument, "this engine has no heap: a world of one needs none");
  shared->deallocate(block);
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

Result Work::result(std::size_t index) const {
  wait();
  const auto& operation = index == 0 && first_ ? first_ : others_.at(index - 1);
  return {.tensor = operation->result,
          .received = operation->received,
          .last_joined = operation->last_joined,
          .memory = operation};
}

}  // namespace lockstep
