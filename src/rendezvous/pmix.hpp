// PMIx: what Open MPI and Slurm (srun --mpi=pmix) offer to the processes of a job, to tell each other a few words.
//
// The library is the one of the system, loaded when it is needed. Its server hands a word only to processes of the
// job's user that it has started itself.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::rendezvous {

class Pmix {
 public:
  /// Null: there is no PMIx library on this machine, or none of a version whose interface is known here.
  static std::unique_ptr<Pmix> load();

  virtual ~Pmix() = default;

  /// Gives each rank the texts of all, in rank order. Every rank calls it, once under a given key.
  /// Throws Error(unavailable) that names the ranks that did not come in time.
  virtual std::vector<std::string> all_gather(const std::string& key, const std::string& text, int size,
                                              std::chrono::milliseconds timeout) = 0;
};

/// The first number in what PMIx_Get_version says, such as 4 for "OpenPMIx 4.2.2 (...)". 0: there is none.
int pmix_major_version(const std::string& text);

}  // namespace lockstep::rendezvous
