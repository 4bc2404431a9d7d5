// How an engine is started.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/export.hpp"

namespace lockstep {

/// Every field has a sensible default; `Options::from_environment` fills them from LOCKSTEP_* variables
/// (docs/settings.md).
struct LOCKSTEP_API Options {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;

  /// Names the job; engines of different jobs never meet.
  std::string job = {};

  /// The job's secret: 32 bytes that all ranks share and no stranger knows. Empty: the engine gets it, where rank and
  /// size are those of the launcher that has started this process (docs/running.md); a world of one needs none.
  std::string secret = {};

  /// Tells apart the engines that a job has had: only engines of the same epoch meet. Unset: the n-th engine that this
  /// process starts has epoch n, which fits as long as every rank starts its engines in the same order.
  std::optional<std::uint32_t> epoch = {};

  /// Address space reserved per rank for tensors in shared memory. Memory is taken when a block of it is first handed
  /// out, and refused, without harm, when a memory limit is near. 0: chosen by the machine's size.
  std::size_t heap_bytes = 0;

  /// How long `Engine` waits for all ranks to arrive.
  std::chrono::milliseconds start_timeout{60'000};

  /// A wait that lasts this long is reported on the log, with the missing ranks.
  std::chrono::milliseconds stall_warning{10'000};

  /// A wait that lasts this long fails.
  std::chrono::milliseconds stall_limit{1'800'000};

  /// Where a timeline (docs/timeline.md) is written from the start on: "trace.json" becomes "trace.RANK.json". Empty:
  /// none.
  std::string timeline = {};

  /// The timeline also shows, across all tracks, where steps begin, and operations outside of steps.
  bool timeline_mark_steps = false;

  /// Where each rank leaves the record of its last operations, for people, when the world ends in failure. Empty:
  /// nowhere.
  std::string flight_directory = {};

  /// How ranks reach each other: "shm" (shared memory, on one host), "tcp", or empty: what fits to where they are.
  std::string transport = {};

  /// Over TCP: the network interface on which this rank listens, such as "eth0". Empty: loopback where all ranks are on
  /// one host, otherwise the one that leads to rank 0.
  std::string interface = {};

  /// On several hosts: where rank 0 listens until all ranks have come, as "host:port". Empty where the launcher tells
  /// (Open MPI, Slurm with PMIx).
  std::string meeting = {};

  /// Over TCP: data is encrypted too, not only what controls it.
  bool encrypt_data = false;

  /// Groups that exist from the start, the same list on all ranks: see Engine::group. Each is the ranks that belong to
  /// it.
  std::vector<std::vector<int>> groups = {};

  /// Reads what `lockstep run`, mpirun, srun or torchrun has set (docs/running.md). Without any of it: a world of one.
  /// Talks to nobody: under the others, `secret` stays empty here, and `Engine` gets it.
  /// Throws Error(invalid_argument) when they contradict each other.
  static Options from_environment();
};

}  // namespace lockstep
