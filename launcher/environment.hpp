// What a rank finds in its environment: who it is, how large the job is, and defaults that make it behave.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// Where a rank stands. On one machine local and global are the same; `cross` counts machines.
struct Placement {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

Placement place_on_one_machine(int rank, int size);

/// What all ranks of a job share.
struct JobEnvironment {
  std::string job_id;
  int secret_fd = -1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  int threads_per_rank = 1;
  int restart = 0;  ///< how often the job has been started again
  int max_restarts = 0;
  std::string preload = {};  ///< the library that ranks preload (preload.hpp); empty: none
  int columns = 0;           ///< width left for a rank's progress bar on a terminal; 0: the output is not a terminal
};

/// The environment of one rank: `inherited` with the names above set over it.
/// Values that only improve the defaults (threads, unbuffered Python) give way to what the user has set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const JobEnvironment& job,
                                          const Placement& placement);

/// `environment` with each NAME=value of `settings` instead of what it had by that name. Of equal names the last
/// counts.
std::vector<std::string> with_settings(std::vector<std::string> environment, const std::vector<std::string>& settings);

/// The value of `name` in a list of NAME=value, or nullptr. Valid as long as the list is.
const char* find_variable(const std::vector<std::string>& environment, const std::string& name);

/// A copy of this process's environment.
std::vector<std::string> current_environment();

/// Cores this process may use (its affinity, so a container's or a batch system's share counts).
int usable_cores();

/// The share of one of `ranks` ranks, at least one.
int threads_per_rank(int ranks);

/// A TCP port that was free on all interfaces a moment ago.
int find_free_port();

}  // namespace lockstep::launcher
