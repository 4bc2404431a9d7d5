// Reading and writing what parties have, wherever it lies: in shared memory directly, in private memory of another
// process by copying a block that fits the cache.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/call.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

class Reach {
 public:
  explicit Reach(const Call& call) : call_(call), shared_(call.transport->shared()) {}

  /// How much may be asked for at once: everything, unless blocks have to be copied.
  std::size_t block_bytes() const;

  /// The party's input from `offset` on. nullptr: its process is gone. Valid until the next call for the same party.
  const std::byte* input(std::size_t party, std::size_t offset, std::size_t bytes);

  /// Where to put the result for the party. What is not in shared memory must be sent off with `deliver`.
  std::byte* output(std::size_t party, std::size_t offset, std::size_t bytes);
  bool deliver(std::size_t party, std::size_t offset, std::size_t bytes);

 private:
  std::byte* buffer(std::vector<std::vector<std::byte>>& buffers, std::size_t party, std::size_t bytes);

  const Call& call_;
  transport::SharedMemory* shared_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<std::byte>> outputs_;
};

}  // namespace lockstep::collective
