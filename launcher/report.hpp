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
  std::string program;  ///< the file that was executed
};

/// The report, line by line.
std::vector<std::string> describe(const FailureReport& report);

/// "SIGKILL (9)".
std::string signal_name(int signal_number);

}  // namespace lockstep::launcher
