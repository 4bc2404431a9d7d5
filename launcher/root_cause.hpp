// Which of several failed ranks failed first, and which failed because of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::launcher {

enum class RankState {
  running,
  stopped,      ///< alive and halted by a signal (state T), which no launcher did
  exited,       ///< `code` is the exit code
  killed,       ///< by a signal; `code` is its number
  not_started,  ///< the program could not be executed; `code` is errno
  lost,         ///< its host is gone, and nobody can tell
};

struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  RankState state = RankState::running;
  int code = 0;
  bool told_to_end = false;     ///< the launcher had signalled it before it ended: its end explains nothing
  int order = 0;                ///< the how manieth of the ranks that ended it was
  std::set<int> lost_ranks;     ///< the ranks whose loss it reported
  std::string noticed_in = {};  ///< the operation in which it noticed that
  std::string host = {};        ///< empty: this machine
};

/// True when the rank ended in another way than with exit code 0, and not because the launcher wanted it.
bool has_failed(const RankOutcome& outcome);

/// True when the outcome names a cause that no later event can overrule: a rank killed from outside or by a crash.
bool is_certain_cause(const RankOutcome& outcome);

/// The rank to blame, as an index. `outcomes` holds all ranks of the job, indexed by rank; nothing when none failed.
///
/// A rank that reports a lost rank follows that one, if it failed too. Among the others, a death that the program did
/// not choose (kill, crash) counts before an exit code, because peers that notice it may be gone first.
/// Among equals the earliest is chosen.
std::optional<std::size_t> choose_root_cause(const std::vector<RankOutcome>& outcomes);

}  // namespace lockstep::launcher
