// Where every rank is: its Python stack where it can answer, and the operation it is in, read from outside.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
};

struct Whereabouts {
  RankProcess process;
  char state = '?';                       ///< the letter of ps
  std::vector<std::string> stack;         ///< of Python, innermost call first; empty: it does not answer
  std::optional<std::string> waiting_in;  ///< "all-reduce `fc1.weight`": the oldest operation that has not ended
  double waiting_seconds = 0;
  std::string last;       ///< without such: its last operation and how long ago it was submitted; empty: none is known
  std::string host = {};  ///< empty: this machine
};

/// Asks all of them at once, and takes at most half a second. A Python rank that has called `init` answers by its
/// stack, unless it is stopped; a rank with an engine by its flight record.
std::vector<Whereabouts> find_whereabouts(const std::vector<RankProcess>& ranks);

/// All of it, line by line; the last line is the sentence below, if there is one.
std::vector<std::string> describe(const std::vector<Whereabouts>& ranks);

/// The same of only those that others wait for; of all when nobody is missing. For a job that is stuck.
std::vector<std::string> describe_missing(const std::vector<Whereabouts>& ranks);

/// "waiting: 0,1,3 in all-reduce `fc1.weight`; missing: 2, state T (stopped)". Empty when no rank waits, or all do for
/// the same.
std::string waiting_sentence(const std::vector<Whereabouts>& ranks);

}  // namespace lockstep::launcher
