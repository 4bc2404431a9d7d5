// The command line of `lockstep run`.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "command_text.hpp"
#include "errors.hpp"
#include "hosts.hpp"
#include "remote_host.hpp"
#include "topology.hpp"

namespace lockstep::launcher {

struct RunOptions {
  int processes = 0;
  bool module = false;  ///< the program is a Python module
  bool quiet = false;
  bool timestamps = false;  ///< before each line of a rank
  bool json = false;
  bool dry_run = false;
  bool check_build = false;  ///< show Horovod's table instead; nothing else is set then
  int max_restarts = 0;
  std::vector<HostSlots> hosts;  ///< and the ranks of each; empty: all on this machine
  SshOptions ssh;
  std::string master_address;  ///< empty: where the first host was reached
  int master_port = 0;         ///< 0: a free one
  Binding binding = Binding::automatic;
  std::string output_directory;  ///< empty: no copies
  std::string call_folder;       ///< the ranks call the function in it (function_call.hpp); empty: they do not
  std::chrono::milliseconds shutdown_timeout{2000};
  std::vector<std::string> environment;  ///< NAME=value, on top of the launcher's own
  std::vector<std::string> no_effect;    ///< options of other launchers that were given and change nothing here
  std::vector<std::string> command;      ///< the program and its arguments, as the user wrote them
};

/// Text to be shown instead of a run: help.
struct HelpText {
  std::string text;
};

/// Reads what follows `lockstep run`. Throws UsageError.
std::variant<RunOptions, HelpText> parse_run_options(const std::vector<std::string>& arguments);

/// For the manual page and the completion.
CommandText describe_run();

}  // namespace lockstep::launcher
