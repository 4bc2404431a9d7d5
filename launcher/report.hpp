// The last lines on the screen of a failed job: who failed first, how, its last words, and what to do next.
#pragma once

#include <string>
#include <vector>

#include "out_of_memory.hpp"
#include "root_cause.hpp"

namespace lockstep::launcher {

struct FailureReport {
  RankOutcome cause;
  std::vector<RankOutcome> all;         ///< every rank, indexed by rank
  std::vector<std::string> last_words;  ///< end of the rank's stderr
  MemoryEvidence memory = MemoryEvidence::none;
  std::string program;         ///< the file that was executed
  std::string lost_host = {};  ///< why the host of a lost rank is gone
};

/// "rank 1 (pid 4711) was killed by SIGKILL (9)", and what the user can do about it.
std::string what_happened(const FailureReport& report);
std::string next_step(const FailureReport& report);

/// True when the kernel killed the rank because memory ran out.
bool is_out_of_memory(const FailureReport& report);

/// The report, line by line.
std::vector<std::string> describe(const FailureReport& report);

/// "SIGKILL (9)".
std::string signal_name(int signal_number);

}  // namespace lockstep::launcher
