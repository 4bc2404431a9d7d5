// Where simulated survivors meet to start anew.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core.hpp"
#include "plan.hpp"
#include "simulated_world.hpp"

namespace lockstep::simulation {

class Meetings {
 public:
  Meetings(const Plan& plan, Scheduler& scheduler) : plan_(plan), scheduler_(scheduler) {}

  struct Place {
    std::vector<int> survivors;  // ranks of the old world
    std::set<int> arrived;
    std::unique_ptr<SimulatedWorld> world;
  };

  /// For rank `rank` of the old world: the place where they meet, once all are there. Throws Error(unavailable) when
  /// one of them dies first.
  Place& meet(SimulatedWorld& old, const Agreement& members, std::uint32_t round, int rank);

  /// Ranks that came to one place with different ideas of who is left.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const Plan& plan_;
  Scheduler& scheduler_;
  std::map<std::pair<SimulatedWorld*, std::uint32_t>, Place> places_;
  std::vector<std::string> problems_;
};

}  // namespace lockstep::simulation
