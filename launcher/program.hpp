// From what the user wrote to what is executed.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

struct Program {
  std::string path;                    ///< the file to execute
  std::vector<std::string> arguments;  ///< argv, with argv[0]
};

/// Finds the program before anything is started, so that a misspelt name costs one message and no process.
/// `search_path` is the value of PATH. Throws UsageError.
Program resolve_program(const std::vector<std::string>& command, bool module, const std::string& search_path);

}  // namespace lockstep::launcher
