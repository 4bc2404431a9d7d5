// What happens in one schedule: how large the world is, what its ranks do, and what befalls them. All of it follows
// from a seed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler.hpp"

namespace lockstep::simulation {

/// Which trouble a schedule may contain.
enum class Trouble {
  none,      ///< nothing may fail
  misuse,    ///< ranks disagree, skip an operation, leave early or abort
  deaths,    ///< up to three ranks are killed or stopped at any point
  delays,    ///< ranks are stopped for a while, again and again, and nothing may fail
  deadlock,  ///< in the end all block in operations that nobody else comes to
};

/// Something that all ranks do; what exactly each does in it may differ.
struct Phase {
  enum class Kind { reduce, batch, step, barrier, broadcast, gather, group, pair, join, compute, cross };
  /// Of a crossing: in what ranks block.
  enum class Way { receives, groups, names, offers, join, background };

  Kind kind = Kind::barrier;
  int number = 0;                   ///< its place in the plan; goes into names and values
  int count = 1;                    ///< operations of a batch or step
  bool named = false;               ///< of a single operation
  std::size_t elements = 1;         ///< of each tensor
  int root = 0;                     ///< broadcast; the sender of a pair
  std::vector<int> ranks = {};      ///< the group, the pair, or those that block in a crossing; the others leave
  std::vector<int> turns = {};      ///< join: how many operations each rank does before
  std::vector<int> durations = {};  ///< compute: milliseconds, by rank
  Way way = Way::names;             ///< cross
  int deviant = -1;                 ///< this rank passes a tensor of another size
  int skipped_by = -1;              ///< this rank does not do it at all
  int left_by = -1;                 ///< this rank ends its program before it
  int aborted_by = -1;              ///< this rank calls abort before it
};

struct Plan {
  std::uint64_t seed = 0;
  Trouble trouble = Trouble::none;
  int size = 1;
  bool shared_memory = false;
  bool crowded = false;  ///< no short cut for tiny operations
  std::uint64_t log_depth = 64;
  bool gives_up = false;  ///< once the world has ended, ranks leave instead of going on with the survivors
  std::vector<Phase> phases;
  std::vector<Fault> faults;

  bool is_healthy() const { return trouble == Trouble::none || trouble == Trouble::delays; }

  /// Whether a rank may leave while others still need it, though nothing is wrong with the world.
  bool may_leave_others_alone() const;

  static Plan make(std::uint64_t seed, Trouble trouble);

  /// For people who look into a failure.
  std::string text() const;
};

}  // namespace lockstep::simulation
