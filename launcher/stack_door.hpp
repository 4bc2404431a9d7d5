// Where `lockstep stack` asks a launcher whose ranks are on other hosts: an abstract Unix socket that tells the
// launcher's pid and its job by its name. The answer is a memory file, so that nobody has to wait until somebody else
// has read it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "unique_fd.hpp"

namespace lockstep::launcher {

class StackDoor {
 public:
  /// Opens the door of this process. Throws std::system_error.
  explicit StackDoor(const std::string& job_id);

  int fd() const { return socket_.get(); }

  /// The next visitor. Nothing (an empty descriptor) when nobody is there, or it is not of this user.
  UniqueFd let_in() const;

 private:
  UniqueFd socket_;
};

/// Hands over the answer. A visitor that has gone meanwhile gets none.
void answer(const UniqueFd& visitor, const std::string& text);

struct FoundDoor {
  pid_t launcher = 0;
  std::string job;
};

/// Those of this user on this machine; for root, all of them.
std::vector<FoundDoor> find_doors();

/// What the launcher says. Throws UnavailableError when it does not answer in time, or is somebody else's.
std::string ask_at(const FoundDoor& door, std::chrono::milliseconds limit);

}  // namespace lockstep::launcher
