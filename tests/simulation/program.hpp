// What one simulated process does: the phases of a plan on a real engine, with every result checked.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core.hpp"
#include "meetings.hpp"
#include "plan.hpp"
#include "simulated_world.hpp"

namespace lockstep::simulation {

/// What a process leaves behind for the test.
struct Outcome {
  bool completed = false;      ///< all its operations are done, and it only has to leave
  bool finished = false;       ///< it came to its end, with or without errors
  std::optional<Error> ended;  ///< why the world ended, as this process was told
  std::optional<std::chrono::steady_clock::time_point> crossed;  ///< when it came to the crossing
  std::optional<std::chrono::steady_clock::time_point> told;     ///< when it was told that the world had ended
  bool left_alone = false;                                       ///< an operation failed because a peer had left
  std::vector<std::string> problems;
  std::map<std::string, std::string> disagreements;  ///< what it was told, by operation
};

class Program {
 public:
  Program(const Plan& plan, Scheduler& scheduler, SimulatedWorld& world, Meetings& meetings, int rank, Outcome& outcome)
      : plan_(plan),
        scheduler_(scheduler),
        world_(world),
        meetings_(meetings),
        rank_(rank),
        outcome_(outcome),
        random_(plan.seed * 16 + static_cast<std::uint64_t>(rank)) {}

  void run();

 private:
  using Core = engine::Core;
  struct Tensor {
    std::vector<float> values;
  };
  struct Stop {};  // the program goes no further

  void run_phase(const Phase& phase);
  void reduce(const Phase& phase);
  void batch(const Phase& phase, bool as_step);
  void broadcast(const Phase& phase);
  void gather(const Phase& phase);
  void group(const Phase& phase);
  void pair(const Phase& phase);
  void join(const Phase& phase);
  void cross(const Phase& phase);
  engine::Request crossing(const Phase& phase, Tensor& tensor);
  void compute(int milliseconds);

  // After the end of the world: as often as it takes, a new one among the survivors, tried out with one operation.
  void go_on(Core& failed, SimulatedWorld& world, int generation);
  Options options(int rank, int size) const;

  Tensor& make_tensor(int operation, std::size_t elements);
  bool takes_part(const Phase& phase) const;
  engine::Request reduction(Tensor& tensor, const std::string& name) const;
  // Runs an operation that may fail, and judges the failure. True when it succeeded.
  bool attempt(const std::string& what, bool may_disagree, const std::function<void()>& operation);
  void expect(bool truth, const std::string& what);

  const Plan& plan_;
  Scheduler& scheduler_;
  SimulatedWorld& world_;
  Meetings& meetings_;
  int rank_;
  Outcome& outcome_;
  Random random_;
  std::deque<Tensor> tensors_;  // they outlive the engine, also that of a killed process
  Core* core_ = nullptr;
};

}  // namespace lockstep::simulation
