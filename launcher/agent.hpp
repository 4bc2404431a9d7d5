// `lockstep agent`: the launcher's hand on another host. It is started there by ssh, starts the ranks of that host, and
// tells the launcher all that they write and how they end. agent_protocol.hpp has the words.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

inline constexpr const char* kAgentCommand = "agent";

/// Serves the launcher at the other end of the standard streams until the job is over or that end is gone; then nothing
/// is left of what it has started. A guardian ends the ranks should the agent itself be killed.
int run_agent(const std::vector<std::string>& arguments);

}  // namespace lockstep::launcher
