// What the processes of a set of test hosts see of the machine: the furniture of their namespaces.
#pragma once

#include <string>

namespace lockstep::hosts {

/// "10.99.0.1" for host 0. The range 10.99.0.0/24 is used inside these namespaces only, which are connected to nothing
/// else.
std::string address_of(int host);

/// For the first process of a host, in namespaces that are all new: its name, loopback, and mounts of its own: /proc,
/// /sys, /dev/shm, /run, and /etc/hosts with all hosts of the set. Other files, /tmp too, are those of the machine, as
/// hosts with a shared file system have them. Throws Error(system).
void furnish_host(int host, int count);

/// For the keeper: its mounts are its own. Throws Error(system).
void furnish_keeper();

/// Lets go of the standard streams, for which the starter or its pipes may wait, and of the folder it was started in.
void detach_from_starter();

}  // namespace lockstep::hosts
