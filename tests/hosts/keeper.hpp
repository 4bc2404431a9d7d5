// The processes of a set of test hosts.
//
// The keeper is the first process of a process namespace, and with it the kernel ends all others. Everything else that
// belongs to the set (network namespaces with their interfaces, mounts) is held by these processes alone, so nothing of
// a set outlives its keeper, however that ends. A set is found by its name at an abstract Unix socket, which goes with
// it too.
#pragma once

#include <string>
#include <vector>

#include "relay.hpp"

namespace lockstep::hosts {

struct SetOfHosts {
  std::string name;
  int count = 0;
  bool relayed = false;  ///< interfaces are those of a Relay; otherwise there are none yet
  LinkShape shape;
  int owner = 0;  ///< process with whose end the set ends; 0: none
};

/// Makes the set, and returns in the process that was called once the set lives by itself. Until the standard input of
/// the keeper has said "settled" the set ends with that. Throws Error.
void keep(const SetOfHosts& set);

/// The name of the socket, without the zero byte before it.
std::string socket_name(const std::string& set);

/// Runs a command in the host whose first process is `host`, hands it the signals that this process gets, and returns
/// its exit code. The command is killed when this process is. Throws Error.
int run_in_host(int host, const std::vector<std::string>& command);

}  // namespace lockstep::hosts
