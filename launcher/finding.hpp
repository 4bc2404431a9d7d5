// What `lockstep doctor` has found about one thing.
#pragma once

#include <string>

namespace lockstep::launcher {

struct Finding {
  enum class Level {
    good,
    absent,   ///< not there, and not needed by every job
    advice,   ///< jobs work, but would be better off otherwise
    problem,  ///< jobs fail
  };

  std::string name;
  Level level = Level::good;
  std::string text;
  std::string remedy = {};  ///< the command that mends it; empty: nothing to mend
};

}  // namespace lockstep::launcher
