#include "plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace lockstep::simulation {
namespace {

constexpr std::size_t kElements[] = {1, 5, 20, 21, 300, 5000};

std::vector<int> some_ranks(Random& random, int size, std::size_t least) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  random.shuffle(ranks);
  ranks.resize(least + random.below(ranks.size() - least + 1));
  return ranks;
}

Phase some_phase(Random& random, int size) {
  using Kind = Phase::Kind;
  Phase phase;
  phase.kind = static_cast<Kind>(random.below(10));
  if (size < 2 && phase.kind == Kind::pair) phase.kind = Kind::barrier;
  phase.named = random.one_in(2);
  phase.elements = kElements[random.below(std::size(kElements))];
  phase.root = static_cast<int>(random.below(static_cast<std::uint64_t>(size)));
  if (phase.kind == Kind::batch || phase.kind == Kind::step) phase.count = 1 + static_cast<int>(random.below(6));
  if (phase.kind == Kind::group) phase.ranks = some_ranks(random, size, 1);
  if (phase.kind == Kind::pair) {
    phase.ranks = some_ranks(random, size, 2);
    phase.ranks.resize(2);
  }
  for (int rank = 0; rank < size; ++rank) {
    phase.turns.push_back(static_cast<int>(random.below(4)));
    phase.durations.push_back(random.one_in(20) ? 5000 : static_cast<int>(random.below(300)));
  }
  return phase;
}

int some_rank(Random& random, const Plan& plan) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(plan.size)));
}

void add_misuse(Random& random, Plan& plan) {
  Phase& phase = plan.phases[random.below(plan.phases.size())];
  const int rank = some_rank(random, plan);
  switch (random.below(4)) {
    case 0:
      if (plan.size > 1) phase.deviant = rank;
      break;
    case 1:
      // A rank that skips and then joins has a right to be left out.
      for (Phase& other : plan.phases) {
        if (other.kind == Phase::Kind::join) other.kind = Phase::Kind::barrier;
      }
      phase.skipped_by = rank;
      phase.named = true;  // else the operations that follow would meet others than they should
      break;
    case 2:
      phase.left_by = rank;
      break;
    default:
      phase.aborted_by = rank;
  }
}

// Early points are as likely as late ones, of which there are many more.
unsigned some_count(Random& random) { return 1 + static_cast<unsigned>(random.below(1ULL << (2 + random.below(10)))); }

void add_deaths(Random& random, Plan& plan) {
  const auto number = 1 + random.below(3);
  for (std::uint64_t i = 0; i < number; ++i) {
    Fault fault;
    fault.process = some_rank(random, plan);
    fault.count = some_count(random);
    if (random.one_in(4)) {
      constexpr int kStops[] = {500, 2'000, 5'000, 100'000};
      fault.stop = std::chrono::milliseconds(kStops[random.below(4)]);
    }
    // While it says that somebody else has died, or in the middle of what comes after.
    constexpr Point kDelicate[] = {Point::pronounce, Point::seat, Point::meet, Point::access, Point::leave};
    if (i > 0 && random.one_in(2)) {
      fault.anywhere = false;
      fault.point = kDelicate[random.below(std::size(kDelicate))];
      fault.count = 1 + static_cast<unsigned>(random.below(8));
    }
    if (random.one_in(8)) {  // at the very end
      fault.anywhere = false;
      fault.point = Point::leave;
      fault.count = 1;
    }
    plan.faults.push_back(fault);
  }
}

void add_delays(Random& random, Plan& plan) {
  const auto number = 1 + random.below(6);
  for (std::uint64_t i = 0; i < number; ++i) {
    constexpr int kDelays[] = {50, 300, 1'000, 2'000};  // not long enough to count as stopped
    Fault fault;
    fault.process = some_rank(random, plan);
    fault.count = some_count(random);
    fault.stop = std::chrono::milliseconds(kDelays[random.below(4)]);
    if (random.one_in(3)) {  // while it says how it stands
      fault.anywhere = false;
      fault.point = Point::declare;
      fault.count = 1 + static_cast<unsigned>(random.below(16));
    }
    plan.faults.push_back(fault);
  }
}

void add_deadlock(Random& random, Plan& plan) {
  using Way = Phase::Way;
  if (plan.size < 2) plan.size = 2;
  for (Phase& phase : plan.phases) {
    phase.turns.resize(static_cast<std::size_t>(plan.size));
    phase.durations.resize(static_cast<std::size_t>(plan.size));
  }
  Phase phase = some_phase(random, plan.size);
  phase.kind = Phase::Kind::cross;
  phase.number = static_cast<int>(plan.phases.size());
  phase.way = static_cast<Way>(random.below(6));
  const bool among_some = phase.way == Way::receives || phase.way == Way::groups;
  phase.ranks = some_ranks(random, plan.size, among_some ? 2 : static_cast<std::size_t>(plan.size));
  plan.phases.push_back(phase);
}

}  // namespace

Plan Plan::make(std::uint64_t seed, Trouble trouble) {
  Random random(seed * 8 + static_cast<std::uint64_t>(trouble));
  random.next();
  Plan plan;
  plan.seed = seed;
  plan.trouble = trouble;
  plan.size = random.one_in(16) ? 1 : 2 + static_cast<int>(random.below(random.one_in(4) ? 7 : 3));
  plan.shared_memory = random.one_in(2);
  plan.crowded = random.one_in(2);
  plan.log_depth = random.one_in(4) ? 16 : 64;
  const auto phases = 1 + random.below(6);
  for (std::uint64_t i = 0; i < phases; ++i) {
    plan.phases.push_back(some_phase(random, plan.size));
    plan.phases.back().number = static_cast<int>(i);
  }
  if (trouble == Trouble::misuse) add_misuse(random, plan);
  if (trouble == Trouble::deadlock || (trouble == Trouble::deaths && random.one_in(8))) add_deadlock(random, plan);
  if (trouble == Trouble::deaths) add_deaths(random, plan);
  if (trouble == Trouble::delays || (trouble == Trouble::deadlock && random.one_in(2))) add_delays(random, plan);
  plan.gives_up = trouble == Trouble::misuse || random.one_in(2);
  return plan;
}

bool Plan::may_leave_others_alone() const {
  return std::any_of(phases.begin(), phases.end(), [](const Phase& phase) {
    return phase.left_by >= 0 || phase.skipped_by >= 0 || phase.kind == Phase::Kind::cross;
  });
}

std::string Plan::text() const {
  constexpr const char* kNames[] = {"reduce", "batch", "step", "barrier", "broadcast", "gather",
                                    "group",  "pair",  "join", "compute", "cross"};
  std::string text = fmt::format("{} ranks over {}{}, log of {}{}", size, shared_memory ? "shared memory" : "messages",
                                 crowded ? ", crowded" : "", log_depth, gives_up ? ", gives up when it ends" : "");
  for (const Phase& phase : phases) {
    text += fmt::format("\n  {} x {}{}, {} elements, root {}", kNames[static_cast<int>(phase.kind)], phase.count,
                        phase.named ? " named" : "", phase.elements, phase.root);
    if (!phase.ranks.empty()) text += fmt::format(", ranks [{}]", fmt::join(phase.ranks, ", "));
    if (phase.kind == Phase::Kind::join) text += fmt::format(", turns [{}]", fmt::join(phase.turns, ", "));
    if (phase.kind == Phase::Kind::compute) text += fmt::format(", ms [{}]", fmt::join(phase.durations, ", "));
    if (phase.kind == Phase::Kind::cross) text += fmt::format(", way {}", static_cast<int>(phase.way));
    if (phase.deviant >= 0) text += fmt::format(", rank {} deviates", phase.deviant);
    if (phase.skipped_by >= 0) text += fmt::format(", rank {} skips it", phase.skipped_by);
    if (phase.left_by >= 0) text += fmt::format(", rank {} leaves before", phase.left_by);
    if (phase.aborted_by >= 0) text += fmt::format(", rank {} aborts before", phase.aborted_by);
  }
  for (const Fault& fault : faults) {
    text += fmt::format("\n  rank {} is {} at its {}. {}", fault.process,
                        fault.stop.count() == 0 ? "killed" : fmt::format("stopped for {} ms", fault.stop.count()),
                        fault.count, fault.anywhere ? "step" : fmt::format("point {}", static_cast<int>(fault.point)));
  }
  return text;
}

}  // namespace lockstep::simulation
