// The control plane as a simulation: thousands of worlds, each with its own program, its own order of events and its
// own deaths. Whatever happens, it ends, everybody is told the same, and nothing succeeds with a wrong result.
//
// A failure prints its seed. LOCKSTEP_SIMULATION_SEED=n runs that schedule alone (with --gtest_filter for its kind);
// LOCKSTEP_SIMULATION_SCHEDULES=n sets how many each test runs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "plan.hpp"
#include "program.hpp"
#include "scheduler.hpp"
#include "simulated_world.hpp"

namespace lockstep::simulation {
namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::uint64_t usual_schedules() { return under_sanitizer() ? 200 : 2000; }

void check_same_words(const std::vector<Outcome>& outcomes, std::vector<std::string>& problems) {
  std::map<std::string, std::string> words;
  for (const Outcome& outcome : outcomes) {
    for (const auto& [operation, text] : outcome.disagreements) {
      const auto [first, fresh] = words.emplace(operation, text);
      if (!fresh && first->second != text)
        problems.push_back(fmt::format("{}: '{}' on one rank, '{}' on another", operation, first->second, text));
    }
  }
}

// Operations that only some ranks take part in: others may be done with everything before these are.
bool has_partial_operations(const Plan& plan) {
  return std::any_of(plan.phases.begin(), plan.phases.end(), [](const Phase& phase) {
    return phase.kind == Phase::Kind::group || phase.kind == Phase::Kind::pair || phase.kind == Phase::Kind::join;
  });
}

void check_verdict(const Plan& plan, const Scheduler& scheduler, const SimulatedWorld& world,
                   const std::vector<Outcome>& outcomes, std::vector<std::string>& problems) {
  const auto& verdict = world.verdict();
  if (!verdict) return;
  if (plan.is_healthy()) problems.push_back("a healthy world ended: " + verdict->text);
  if (verdict->code != ErrorCode::peer_lost) return;
  bool stopped = false;
  bool delayed = false;
  for (const Fault& fault : plan.faults) {
    stopped |= fault.process == verdict->rank && fault.stop > std::chrono::seconds(3);
    delayed |= fault.stop.count() > 0;
  }
  if (!stopped && !scheduler.is_dead(verdict->rank)) problems.push_back("the living are blamed: " + verdict->text);
  // When all the dead had come to their end, nobody waits for them. (Of several dead, any may be named.)
  bool all_completed = !delayed && !has_partial_operations(plan);
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    all_completed = all_completed && (outcomes[i].completed || !scheduler.is_dead(static_cast<int>(i)));
  if (all_completed) problems.push_back("the dead had done all that was asked of them: " + verdict->text);
}

// Everybody that blocks is told, in one second unless it was held up, who waits in what.
void check_deadlock(const Plan& plan, const SimulatedWorld& world, const std::vector<Outcome>& outcomes,
                    std::vector<std::string>& problems) {
  const auto& verdict = world.verdict();
  if (!verdict || verdict->code != ErrorCode::mismatch || verdict->text.find("deadlock: ") != 0) {
    problems.push_back("a deadlock was not told: " + (verdict ? verdict->text : "no verdict"));
    return;
  }
  auto last = std::chrono::steady_clock::time_point::min();
  for (const Outcome& outcome : outcomes) last = std::max(last, outcome.crossed.value_or(last));
  for (int rank : plan.phases.back().ranks) {
    const auto& told = outcomes[static_cast<std::size_t>(rank)].told;
    if (!told) {
      problems.push_back(fmt::format("rank {} was not told", rank));
    } else if (plan.faults.empty() && *told - last > std::chrono::seconds(1)) {
      problems.push_back(fmt::format("rank {} was told late", rank));
    }
  }
}

// What is wrong with the schedule, or nothing.
std::vector<std::string> run(const Plan& plan) {
  Scheduler scheduler(plan.seed);
  std::vector<int> processes;
  for (int rank = 0; rank < plan.size; ++rank) processes.push_back(rank);
  SimulatedWorld world(scheduler, processes, plan.shared_memory, plan.log_depth);
  Meetings meetings(plan, scheduler);
  std::vector<Outcome> outcomes(processes.size());
  std::vector<std::unique_ptr<Program>> programs;
  for (int rank : processes) {
    programs.push_back(
        std::make_unique<Program>(plan, scheduler, world, meetings, rank, outcomes[static_cast<std::size_t>(rank)]));
    scheduler.add([program = programs.back().get()] { program->run(); });
  }
  for (const Fault& fault : plan.faults) scheduler.add(fault);
  std::vector<std::string> problems;
  if (!scheduler.run()) problems.push_back("it does not end");
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    problems.insert(problems.end(), outcome.problems.begin(), outcome.problems.end());
    if (!outcome.finished && !scheduler.is_dead(static_cast<int>(i)))
      problems.push_back(fmt::format("rank {} did not come to its end", i));
  }
  problems.insert(problems.end(), meetings.problems().begin(), meetings.problems().end());
  check_same_words(outcomes, problems);
  check_verdict(plan, scheduler, world, outcomes, problems);
  if (plan.trouble == Trouble::deadlock) check_deadlock(plan, world, outcomes, problems);
  return problems;
}

void run_many(Trouble trouble) {
  const std::uint64_t only = setting("LOCKSTEP_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : 1;
  const std::uint64_t last = only != 0 ? only : setting("LOCKSTEP_SIMULATION_SCHEDULES", usual_schedules());
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const Plan plan = Plan::make(seed, trouble);
    const auto problems = run(plan);
    if (problems.empty()) continue;
    ADD_FAILURE() << fmt::format("seed {}: {}\n{}", seed, fmt::join(problems, "\n"), plan.text());
    return;
  }
}

TEST(Simulation, HealthyWorldsFailInNothing) { run_many(Trouble::none); }
TEST(Simulation, SlowWorldsFailInNothing) { run_many(Trouble::delays); }
TEST(Simulation, MisuseIsToldToEveryoneAlike) { run_many(Trouble::misuse); }
TEST(Simulation, DeathsEndInOneVerdict) { run_many(Trouble::deaths); }
TEST(Simulation, DeadlocksAreToldAtOnce) { run_many(Trouble::deadlock); }

}  // namespace
}  // namespace lockstep::simulation
