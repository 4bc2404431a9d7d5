#include "program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace lockstep::simulation {

using collective::Kind;
using engine::Request;

namespace {

// Small whole numbers: their sums are exact, and tell which ranks and which operations went in.
float value_of(int rank, int operation, std::size_t element) {
  return static_cast<float>((rank + 1) * 64 + operation % 7 + static_cast<int>(element % 5));
}

std::vector<float> values_of(int rank, int operation, std::size_t elements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(rank, operation, i);
  return values;
}

std::vector<float> sum_of(const std::vector<int>& ranks, int operation, std::size_t elements) {
  std::vector<float> sums(elements, 0.0F);
  for (int rank : ranks) {
    for (std::size_t i = 0; i < elements; ++i) sums[i] += value_of(rank, operation, i);
  }
  return sums;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TensorView view(std::vector<float>& values, const std::string& name) {
  return {
      .data = values.data(), .dtype = DType::f32, .shape = {static_cast<std::int64_t>(values.size())}, .name = name};
}

}  // namespace

Program::Tensor& Program::make_tensor(int operation, std::size_t elements) {
  return tensors_.emplace_back(Tensor{values_of(rank_, operation, elements)});
}

Options Program::options(int rank, int size) const {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = size;
  options.local_size = plan_.crowded ? 1 << 20 : 1;
  options.stall_warning = std::chrono::hours(1);
  options.stall_limit = std::chrono::seconds(40);
  options.start_timeout = std::chrono::seconds(60);
  return options;
}

void Program::run() {
  Core core(options(rank_, plan_.size), world_.transport(rank_), Core::Drive::owner);
  core_ = &core;
  try {
    for (const Phase& phase : plan_.phases) run_phase(phase);
    outcome_.completed = true;
  } catch (const Stop&) {
    if (outcome_.ended && !plan_.gives_up) go_on(core, world_, 0);
  }
  core.stop();
  outcome_.finished = true;
}

void Program::go_on(Core& failed, SimulatedWorld& world, int generation) {
  SimulatedWorld* next_world = nullptr;
  std::shared_ptr<Core> next;
  try {
    next = failed.continue_with_survivors([&](const Agreement& members, std::uint32_t round) {
      const int rank = failed.options().rank;
      auto& place = meetings_.meet(world, members, round, rank);
      next_world = place.world.get();
      const auto self = std::find(place.survivors.begin(), place.survivors.end(), rank) - place.survivors.begin();
      return std::make_shared<Core>(options(static_cast<int>(self), static_cast<int>(place.survivors.size())),
                                    next_world->transport(static_cast<int>(self)), Core::Drive::owner);
    });
  } catch (const Error& error) {
    // Only who was stopped is left behind, or keeps the others from meeting.
    const bool stops = std::any_of(plan_.faults.begin(), plan_.faults.end(),
                                   [](const Fault& fault) { return fault.stop > std::chrono::seconds(3); });
    expect(stops, fmt::format("could not go on: {}", error.what()));
    return;
  }
  const Agreement agreement = failed.agree();
  outcome_.disagreements[fmt::format("survivors of generation {}", generation)] =
      fmt::format("[{}] after {} steps", fmt::join(agreement.survivors, ", "), agreement.steps);
  Tensor& tensor = tensors_.emplace_back(Tensor{values_of(next->options().rank, generation, 21)});
  try {
    next->run_to_end(reduction(tensor, ""));
    expect(tensor.values == sum_of(all_ranks(next->options().size), generation, 21), "wrong sum among the survivors");
  } catch (const Error& error) {
    const auto& verdict = next_world->verdict();
    expect(verdict && verdict->text == error.what(), fmt::format("unexpected among the survivors: {}", error.what()));
    go_on(*next, *next_world, generation + 1);
  }
  next->stop();
}

void Program::run_phase(const Phase& phase) {
  if (phase.left_by == rank_) throw Stop{};
  if (phase.aborted_by == rank_) {
    attempt("abort", false, [&] { core_->abort("the plan says so"); });
  }
  if (phase.skipped_by == rank_ && phase.kind != Phase::Kind::group) return;
  switch (phase.kind) {
    case Phase::Kind::reduce:
      return reduce(phase);
    case Phase::Kind::batch:
      return batch(phase, false);
    case Phase::Kind::step:
      return batch(phase, true);
    case Phase::Kind::barrier:
      attempt("barrier", false, [&] {
        Request request;
        if (phase.named) request.input.name = fmt::format("barrier {}", phase.number);
        core_->run_to_end(std::move(request));
      });
      return;
    case Phase::Kind::broadcast:
      return broadcast(phase);
    case Phase::Kind::gather:
      return gather(phase);
    case Phase::Kind::group:
      return group(phase);
    case Phase::Kind::pair:
      return pair(phase);
    case Phase::Kind::join:
      return join(phase);
    case Phase::Kind::cross:
      return cross(phase);
    case Phase::Kind::compute:
      return compute(phase.durations[static_cast<std::size_t>(rank_)]);
  }
}

bool Program::takes_part(const Phase& phase) const {
  return std::find(phase.ranks.begin(), phase.ranks.end(), rank_) != phase.ranks.end();
}

Request Program::reduction(Tensor& tensor, const std::string& name) const {
  Request request;
  request.kind = Kind::all_reduce;
  request.input = view(tensor.values, name);
  request.output = view(tensor.values, name);
  return request;
}

void Program::reduce(const Phase& phase) {
  const bool deviates = phase.deviant >= 0;
  Tensor& tensor = make_tensor(phase.number, phase.elements + (phase.deviant == rank_ ? 1 : 0));
  const std::string name = fmt::format("reduce {}", phase.number);
  if (attempt(name, deviates, [&] { core_->run_to_end(reduction(tensor, phase.named ? name : "")); })) {
    expect(!deviates, name + " succeeded though ranks disagreed");
    expect(tensor.values == sum_of(all_ranks(plan_.size), phase.number, phase.elements), name + ": wrong sum");
  }
}

// Named operations in another order on each rank, with some work between; then they are waited for in another order.
void Program::batch(const Phase& phase, bool as_step) {
  if (as_step && !attempt("begin_step", false, [&] { core_->begin_step(); })) return;
  const bool deviates = phase.deviant >= 0;
  std::vector<Tensor*> tensors;
  std::vector<int> order(static_cast<std::size_t>(phase.count));
  std::iota(order.begin(), order.end(), 0);
  for (int i : order) {
    const bool other = deviates && phase.deviant == rank_ && i == 0;
    tensors.push_back(&make_tensor(i, phase.elements + (other ? 1 : 0)));
  }
  std::vector<Core::OperationPtr> operations(order.size());
  random_.shuffle(order);
  for (int i : order) {
    const std::string name = fmt::format("batch {} {}", phase.number, i);
    attempt(name, false, [&] {
      operations[static_cast<std::size_t>(i)] =
          core_->submit(reduction(*tensors[static_cast<std::size_t>(i)], name), /*background=*/true);
    });
    if (random_.one_in(4)) compute(static_cast<int>(random_.below(20)));
  }
  bool complete = true;
  if (as_step) complete = attempt(fmt::format("end of step {}", phase.number), deviates, [&] { core_->end_step(); });
  random_.shuffle(order);
  for (int i : order) {
    const auto index = static_cast<std::size_t>(i);
    const std::string name = fmt::format("batch {} {}", phase.number, i);
    const bool disagreed = deviates && i == 0;
    if (!attempt(name, disagreed, [&] {
          core_->wait(*operations[index]);
          Core::check(*operations[index]);
        }))
      continue;
    expect(!disagreed, name + " succeeded though ranks disagreed");
    expect(tensors[index]->values == sum_of(all_ranks(plan_.size), i, phase.elements), name + ": wrong sum");
  }
  expect(complete || deviates, "a step failed, but none of its operations did");
}

void Program::broadcast(const Phase& phase) {
  Tensor& tensor = make_tensor(phase.number, phase.elements);
  const std::string name = fmt::format("broadcast {}", phase.number);
  Request request = reduction(tensor, phase.named ? name : "");
  request.kind = Kind::broadcast;
  request.root = phase.root;
  if (attempt(name, false, [&] { core_->run_to_end(std::move(request)); })) {
    expect(tensor.values == values_of(phase.root, phase.number, phase.elements), name + ": wrong values");
  }
}

// Every rank gives another number of rows.
void Program::gather(const Phase& phase) {
  const auto rows_of = [&](int rank) { return phase.elements + static_cast<std::size_t>(rank); };
  Tensor& tensor = make_tensor(phase.number, rows_of(rank_));
  const std::string name = fmt::format("gather {}", phase.number);
  Request request;
  request.kind = Kind::all_gather;
  request.input = view(tensor.values, phase.named ? name : "");
  Core::OperationPtr operation;
  const bool done = attempt(name, false, [&] {
    operation = core_->submit(std::move(request), /*background=*/false);
    core_->wait(*operation);
    Core::check(*operation);
  });
  if (!done) return;
  std::vector<float> expected;
  for (int rank = 0; rank < plan_.size; ++rank) {
    const auto part = values_of(rank, phase.number, rows_of(rank));
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const auto* result = static_cast<const float*>(operation->result.data);
  const auto elements = static_cast<std::size_t>(operation->result.elements());
  expect(std::vector<float>(result, result + elements) == expected, name + ": wrong rows");
}

void Program::group(const Phase& phase) {
  if (!takes_part(phase)) return;
  Tensor& tensor = make_tensor(phase.number, phase.elements);
  const std::string name = fmt::format("group {}", phase.number);
  const bool done = attempt(name, false, [&] {
    Request request = reduction(tensor, phase.named ? name : "");
    request.group = core_->make_group(phase.ranks);
    if (phase.skipped_by != rank_) core_->run_to_end(std::move(request));
  });
  if (done && phase.skipped_by != rank_)
    expect(tensor.values == sum_of(phase.ranks, phase.number, phase.elements), name + ": wrong sum");
}

void Program::pair(const Phase& phase) {
  if (!takes_part(phase)) return;
  const int sender = phase.ranks[0];
  const int receiver = phase.ranks[1];
  Tensor& tensor = make_tensor(phase.number, phase.elements);
  Request request;
  request.kind = rank_ == sender ? Kind::send : Kind::receive;
  request.input = view(tensor.values, "");
  if (rank_ == receiver) request.output = request.input;
  request.root = sender;
  request.receiver = receiver;
  request.tag = phase.number;
  request.partner = rank_ == sender ? receiver : sender;
  const std::string name = fmt::format("pair {}", phase.number);
  if (attempt(name, false, [&] { core_->run_to_end(std::move(request)); })) {
    expect(tensor.values == values_of(sender, phase.number, phase.elements), name + ": wrong values");
  }
}

// Each rank has its own number of turns; those that have joined are left out of the sum.
void Program::join(const Phase& phase) {
  const int mine = phase.turns[static_cast<std::size_t>(rank_)];
  for (int turn = 0; turn < mine; ++turn) {
    Tensor& tensor = make_tensor(turn, phase.elements);
    const std::string name = fmt::format("turn {} of {}", turn, phase.number);
    if (!attempt(name, false, [&] { core_->run_to_end(reduction(tensor, phase.named ? name : "")); })) continue;
    std::vector<int> present;
    for (int rank = 0; rank < plan_.size; ++rank) {
      if (phase.turns[static_cast<std::size_t>(rank)] > turn) present.push_back(rank);
    }
    expect(tensor.values == sum_of(present, turn, phase.elements), name + ": wrong sum");
  }
  attempt(fmt::format("join {}", phase.number), false, [&] {
    Request request;
    request.kind = Kind::join;
    const auto operation = core_->submit(std::move(request), /*background=*/true);
    core_->wait(*operation);
    Core::check(*operation);
    // The same on all ranks; the text is compared as those of disagreements are.
    outcome_.disagreements[fmt::format("join {}", phase.number)] = std::to_string(operation->last_joined);
  });
}

// What a rank blocks in at a crossing: something that the others have not come to.
Request Program::crossing(const Phase& phase, Tensor& tensor) {
  using Way = Phase::Way;
  const auto place =
      static_cast<std::size_t>(std::find(phase.ranks.begin(), phase.ranks.end(), rank_) - phase.ranks.begin());
  const bool first = place == 0;
  Request request = reduction(tensor, first ? "side 0" : "side 1");
  switch (phase.way) {
    case Way::receives:
      request = reduction(tensor, "");
      request.kind = Kind::receive;
      request.root = request.partner = phase.ranks[(place + 1) % phase.ranks.size()];
      request.receiver = rank_;
      request.tag = phase.number;
      break;
    case Way::groups: {
      const auto one = core_->make_group(phase.ranks);
      const auto other = core_->make_group(phase.ranks);
      request.group = first ? one : other;
      break;
    }
    case Way::names:
      break;
    case Way::offers:
      if (first) request = reduction(tensor, "");
      break;
    case Way::join: {
      const auto group = core_->make_group(phase.ranks);
      request = {};
      if (first) request.kind = Kind::join;
      if (first) request.group = group;
      break;
    }
    case Way::background:
      request = reduction(tensor, fmt::format("own {}", rank_));
      break;
  }
  return request;
}

void Program::cross(const Phase& phase) {
  outcome_.crossed = scheduler_.now();
  if (!takes_part(phase)) throw Stop{};  // it leaves
  Tensor& tensor = make_tensor(phase.number, phase.elements);
  attempt("crossing", false, [&] {
    Request request = crossing(phase, tensor);
    if (phase.way != Phase::Way::background) return core_->run_to_end(std::move(request));
    const auto operation = core_->submit(std::move(request), /*background=*/true);
    core_->wait(*operation);
    Core::check(*operation);
  });
  expect(false, "a crossing succeeded");
}

// The program does something else. Meanwhile the engine's own thread gets a turn now and then.
void Program::compute(int milliseconds) {
  const int pieces = 1 + static_cast<int>(random_.below(4));
  for (int i = 0; i < pieces; ++i) {
    scheduler_.sleep(std::chrono::microseconds(milliseconds * 1000 / pieces));
    core_->tick();
    scheduler_.step(Point::program);
  }
}

bool Program::attempt(const std::string& what, bool may_disagree, const std::function<void()>& operation) {
  try {
    operation();
    return true;
  } catch (const Error& error) {
    const auto& verdict = world_.verdict();
    const std::string text = error.what();
    if (verdict && text == verdict->text) {
      expect(error.code() == verdict->code, what + ": the code is not the verdict's");
      outcome_.ended = error;
      outcome_.told = scheduler_.now();
      throw Stop{};
    }
    if (error.code() == ErrorCode::mismatch && may_disagree) {
      outcome_.disagreements[what] = text;
      return false;
    }
    const bool alone = error.code() == ErrorCode::peer_lost && text.find("stopped its engine") != std::string::npos;
    if (!alone || !plan_.may_leave_others_alone()) {
      outcome_.problems.push_back(fmt::format("rank {}: {} failed: {}", rank_, what, text));
    }
    outcome_.left_alone = true;
    throw Stop{};
  }
}

void Program::expect(bool truth, const std::string& what) {
  if (!truth) outcome_.problems.push_back(fmt::format("rank {}: {}", rank_, what));
}

}  // namespace lockstep::simulation
