// The public classes, as thin as they look: each call becomes a Request for the Core.
#include "lockstep/engine.hpp"

#include "engine/connect.hpp"
#include "engine/core.hpp"

namespace lockstep {
namespace {

using collective::Kind;
using engine::Core;
using engine::Request;

void run(Core& core, Request request) {
  const auto operation = core.submit(std::move(request), /*background=*/false);
  core.wait(*operation);
  Core::check(*operation);
}

Work run_async(const std::shared_ptr<Core>& core, Request request) {
  return {core->submit(std::move(request), /*background=*/true), core};
}

Request all_reduce_request(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return {.kind = Kind::all_reduce, .input = input, .output = output, .op = options.op};
}
Request broadcast_request(const TensorView& tensor, int root) {
  return {.kind = Kind::broadcast, .input = tensor, .output = tensor, .root = root};
}
Request barrier_request(const std::string& name) {
  Request request;
  request.input.name = name;
  return request;
}

}  // namespace

Engine::Engine() : Engine(Options::from_environment()) {}
Engine::Engine(const Options& options) : core_(engine::connect(options)) {}
Engine::~Engine() { core_->stop(); }

int Engine::rank() const noexcept { return core_->options().rank; }
int Engine::size() const noexcept { return core_->options().size; }
int Engine::local_rank() const noexcept { return core_->options().local_rank; }
int Engine::local_size() const noexcept { return core_->options().local_size; }

void Engine::all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  run(*core_, all_reduce_request(input, output, options));
}
Work Engine::all_reduce_async(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  return run_async(core_, all_reduce_request(input, output, options));
}
void Engine::broadcast(const TensorView& tensor, int root) { run(*core_, broadcast_request(tensor, root)); }
Work Engine::broadcast_async(const TensorView& tensor, int root) { return run_async(core_, broadcast_request(tensor, root)); }
void Engine::barrier(const std::string& name) { run(*core_, barrier_request(name)); }
Work Engine::barrier_async(const std::string& name) { return run_async(core_, barrier_request(name)); }

void Engine::begin_step() { core_->begin_step(); }
std::uint64_t Engine::end_step() { return core_->end_step(); }
void Engine::abort(const std::string& reason) { core_->abort(reason); }

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
    : operation_(std::move(operation)), core_(std::move(core)) {}

bool Work::poll() const { return wait_for(std::chrono::milliseconds(0)); }

void Work::wait() const {
  core_->wait(*operation_);
  Core::check(*operation_);
}

bool Work::wait_for(std::chrono::milliseconds limit) const {
  if (!core_->wait(*operation_, Core::Clock::now() + limit)) return false;
  return true;
}

}  // namespace lockstep
