// A transport between simulated processes. Every call of it is a point at which the scheduler may let another process
// run, or end this one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler.hpp"
#include "transport/transport.hpp"

namespace lockstep::simulation {

/// What the processes of one world share. It outlives them.
class SimulatedWorld {
 public:
  /// `processes[r]` is rank r. With `shared_memory` they reach each other's tensors, otherwise they send messages. A
  /// rank can have `log_depth` notices under way.
  SimulatedWorld(Scheduler& scheduler, std::vector<int> processes, bool shared_memory, std::uint64_t log_depth);

  std::unique_ptr<transport::Transport> transport(int rank);

  const std::optional<transport::Verdict>& verdict() const;
  int process_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)].process; }

 private:
  friend class SimulatedTransport;

  struct Slot {
    std::uint64_t stamp = 0;  // position + 1
    transport::Notice notice;
    std::atomic<std::uint32_t> scratch[16] = {};
  };

  struct Reader {
    std::uint64_t cursor = 0;
    std::uint64_t run = 0;  // all before it are released
    std::vector<bool> released;
  };

  using MessageKey = std::tuple<int, std::uint64_t, std::uint32_t>;  // sender, operation, part

  struct Rank {
    int process = 0;
    std::vector<Slot> log;
    std::uint64_t posted = 0;
    std::vector<Reader> readers;  // of the others' logs
    std::map<MessageKey, std::vector<std::byte>> messages;
    std::unique_ptr<transport::Board> board = std::make_unique<transport::Board>();
    std::uint32_t bell = 0;
    bool left = false;
    std::uint64_t seat = 0;
    bool accessing = false;
    transport::Standstill standstill;
    std::optional<transport::Verdict> verdict;  // what it said; counts only if it was first
  };

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  Scheduler& scheduler_;
  const bool shared_memory_;
  const std::uint64_t depth_;
  std::vector<Rank> ranks_;
  int first_to_speak_ = -1;  // whose verdict counts
};

}  // namespace lockstep::simulation
