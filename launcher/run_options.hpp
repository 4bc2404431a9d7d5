// The command line of `lockstep run`.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace lockstep::launcher {

/// The user has to change the command. The message says what is wrong and what to do. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RunOptions {
  int processes = 0;
  bool module = false;  ///< the program is a Python module
  bool quiet = false;
  bool dry_run = false;
  std::string output_directory;  ///< empty: no copies
  std::chrono::milliseconds shutdown_timeout{2000};
  std::vector<std::string> command;  ///< the program and its arguments, as the user wrote them
};

/// Text to be shown instead of a run: help.
struct HelpText {
  std::string text;
};

/// Reads what follows `lockstep run`. Throws UsageError.
std::variant<RunOptions, HelpText> parse_run_options(const std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
