// Ranks as threads of one process that share nothing but queues: the simplest transport, and the one to copy.
//
// Used for a world of one, and by tests that want the message-passing algorithms without a network.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace lockstep::transport {

class MemoryWorld;

/// All ranks of a world; each element is handed to one thread. They keep the world alive together.
std::vector<std::unique_ptr<Transport>> make_memory_world(int size);

}  // namespace lockstep::transport
