// Reading and writing what parties have, wherever it lies: in shared memory directly, in private memory of another
// process by copying a block that fits the cache.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collective/call.hpp"
#include "collective/leaf_table.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

class Reach {
 public:
  Reach(const Call& call, const LeafTable& table) : call_(call), table_(table), shared_(call.transport->shared()) {}

  /// How much may be asked for at once: everything, unless blocks have to be copied.
  std::size_t block_bytes() const;

  /// Every leaf of the table, each from `offset` bytes on. Empty: the process of one of the owners is gone. Valid until
  /// the next call.
  std::span<const std::byte* const> leaves(std::size_t offset, std::size_t bytes);

  /// One of them. nullptr: its owner's process is gone.
  const std::byte* leaf(std::size_t index, std::size_t offset, std::size_t bytes);

  /// Where to put the result for the party. What is not in shared memory must be sent off with `deliver`.
  std::byte* output(std::size_t party, std::size_t offset, std::size_t bytes);
  bool deliver(std::size_t party, std::size_t offset, std::size_t bytes);

 private:
  static std::byte* buffer(std::vector<std::vector<std::byte>>& buffers, std::size_t party, std::size_t bytes);

  const Call& call_;
  const LeafTable& table_;
  transport::SharedMemory* shared_;
  std::vector<const std::byte*> leaves_;
  std::vector<std::vector<std::byte>> inputs_;   // by leaf
  std::vector<std::vector<std::byte>> outputs_;  // by party
};

}  // namespace lockstep::collective
