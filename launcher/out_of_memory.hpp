// Was a rank killed because memory ran out? The kernel counts such kills, for a control group and for the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

enum class MemoryEvidence {
  none,
  machine,        ///< the kernel's out-of-memory killer was at work on this machine while the job ran
  control_group,  ///< ... in the control group (container, batch job) of this job
};

class OutOfMemoryWatch {
 public:
  /// Takes the counters as they are now as the start.
  OutOfMemoryWatch();

  /// What the counters say since then. Counters that cannot be read say nothing.
  MemoryEvidence evidence() const;

 private:
  struct Counter {
    std::string path;
    MemoryEvidence meaning;
    long start;
  };
  std::vector<Counter> counters_;
};

/// The number after "oom_kill " in a file of lines "name number".
std::optional<long> read_oom_kills(const std::string& path);

}  // namespace lockstep::launcher
