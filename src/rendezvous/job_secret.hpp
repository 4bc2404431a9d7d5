// The secret that the ranks of a job share when `lockstep run` has not started them.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "rendezvous/starter.hpp"

namespace lockstep::rendezvous {

struct JobSecret {
  std::string secret = {};   ///< 32 bytes, the same on every rank; empty when there is no way to get them
  std::string meeting = {};  ///< where rank 0 listens, if the launcher has told: ranks are on several hosts
};

struct SecretOptions {
  std::chrono::milliseconds timeout{60'000};
  /// Makes rank 0 listen for ranks on other hosts, and gives the address. Called only where the launcher passes it on.
  std::function<std::string()> open_meeting = {};
};

/// In this order: from the file LOCKSTEP_SECRET_FILE; from rank 0 through PMIx, where also every rank hears on which
/// host the others are; otherwise from the name of the job alone. That one is no secret: what keeps strangers out is
/// then that the kernel vouches for the user of each peer (LocalMeeting), and so it holds on one host only.
/// Throws Error(invalid_argument) when ranks are on several hosts and nobody carries a secret there, or the file is
/// unfit; Error(unavailable) when some did not come in time.
JobSecret job_secret(const Started& started, const SecretOptions& options);

/// What a file with a secret gives for a job. It must belong to this user, and nobody else may read or write it.
std::string secret_from_file(const std::string& path, const std::string& job);

}  // namespace lockstep::rendezvous
