// The machines of a job: how they are written, and which ranks go where.
#pragma once

#include <string>
#include <vector>

#include "environment.hpp"

namespace lockstep::launcher {

struct HostSlots {
  std::string name;  ///< as ssh understands it
  int slots = 1;     ///< how many ranks it takes, or has

  bool operator==(const HostSlots&) const = default;
};

/// Of "a:2,b". Without a number a host has one slot; slots of a host that is named again are added. Throws UsageError.
std::vector<HostSlots> parse_host_list(const std::string& list);

/// Of a file with a line "a slots=2", "a:2" or "a" per host, and comments after #. Throws UsageError.
std::vector<HostSlots> read_hostfile(const std::string& path);

/// The name is one of this machine, and needs no ssh.
bool is_this_machine(const std::string& name);

int total_slots(const std::vector<HostSlots>& hosts);

/// The hosts that get ranks, and how many each: they are filled in their order. Throws UsageError when there is no
/// room.
std::vector<HostSlots> share_ranks(const std::vector<HostSlots>& hosts, int ranks);

/// Where a rank of those is. Ranks are numbered host by host.
Placement place_on_hosts(const std::vector<HostSlots>& shares, int rank);

}  // namespace lockstep::launcher
