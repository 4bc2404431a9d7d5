// Which host this is, in words that two ranks can compare.
#pragma once

#include <string>

namespace lockstep::rendezvous {

/// The same for two processes exactly when they can share memory: same boot of the same machine, same network
/// namespace (in which they meet), same user. LOCKSTEP_HOST_ID overrides it, for tests.
std::string host_id();

/// The same as one short word, which tells nothing else.
std::string host_tag();

/// What people call it.
std::string host_name();

}  // namespace lockstep::rendezvous
