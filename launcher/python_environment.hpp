// What the Python on the PATH has: the packages that matter to Lockstep.
#pragma once

#include <string>

#include "capture.hpp"

namespace lockstep::launcher {

/// Empty strings: not there.
struct PythonEnvironment {
  std::string python;         ///< version
  std::string executable;     ///< its path
  std::string lockstep;       ///< version of the package
  std::string library;        ///< the liblockstep.so that the package loads
  std::string library_error;  ///< why it loads none
  std::string torch;          ///< version; the package is not imported, which would take a second
  std::string tensorflow;
};

/// The command to run, and what its output means.
std::vector<std::string> python_question();
PythonEnvironment read_python_answer(const CommandResult& answer);

}  // namespace lockstep::launcher
