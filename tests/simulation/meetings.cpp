#include "meetings.hpp"

namespace lockstep::simulation {

Meetings::Place& Meetings::meet(SimulatedWorld& old, const Agreement& members, std::uint32_t round, int rank) {
  Place& place = places_[{&old, round}];
  if (!place.world) {
    place.survivors = members.survivors;
    std::vector<int> processes;
    for (int survivor : members.survivors) processes.push_back(old.process_of(survivor));
    place.world = std::make_unique<SimulatedWorld>(scheduler_, processes, plan_.shared_memory, plan_.log_depth);
  } else if (place.survivors != members.survivors) {
    problems_.push_back("two survivors differ about who is left");
  }
  place.arrived.insert(rank);
  const auto deadline = scheduler_.now() + std::chrono::minutes(1);
  while (place.arrived.size() < place.survivors.size()) {
    scheduler_.step(Point::meet);
    bool hopeless = scheduler_.now() > deadline;
    for (int survivor : place.survivors) {
      const int process = old.process_of(survivor);
      hopeless |= scheduler_.is_dead(process) || scheduler_.counts_as_stopped(process);
    }
    if (hopeless) throw Error(ErrorCode::unavailable, "one of them will never come");
    scheduler_.sleep(std::chrono::milliseconds(1));
  }
  return place;
}

}  // namespace lockstep::simulation
