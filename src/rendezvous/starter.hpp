// Who has started this process as a rank, and as which: read from the environment, without talking to anybody.
#pragma once

#include <optional>
#include <string>

namespace lockstep::rendezvous {

struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;           ///< the same for all ranks of the job, and for no other job that runs on this host
  std::string meeting = {};  ///< host:port of rank 0, where its starter tells
};

/// How the ranks come to share a secret (job_secret.hpp).
enum class Channel {
  inherited,    ///< `lockstep run` hands it over as a descriptor
  pmix,         ///< rank 0 makes it, and PMIx carries it to the processes of the job
  credentials,  ///< there is no protected channel: the kernel tells who a peer on this host is
};

struct Started {
  const char* by = "";
  Channel channel = Channel::credentials;
  Place place;
};

/// Nothing: this process was started by nobody that we know, and is a world of one.
/// Throws Error(invalid_argument) when the variables contradict each other.
std::optional<Started> find_starter();

/// How many tasks Slurm has put on a node: an entry of SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1".
/// Throws Error(invalid_argument) when the text is no such list, or has no entry for the node.
int tasks_on_node(const std::string& list, int node);

/// The first of a list of nodes as Slurm writes it, such as "rack1-n[01-03,7],other".
/// Throws Error(invalid_argument) when the text is no such list.
std::string first_node(const std::string& list);

}  // namespace lockstep::rendezvous
