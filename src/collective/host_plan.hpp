// Who adds what where when several ranks share a host, and the network between hosts is to carry as little as possible.
// Pure.
//
// Every rank owns a slice. In each other host one rank collects the slice from the ranks of its host, adds them up, and
// sends the sums to the owner. It sends the sum of every largest subtree whose leaves are all in its host: those are
// what the fixed tree needs of it. Where hosts hold neighbouring ranks, that is one sum or a few.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/call.hpp"

namespace lockstep::collective {

class HostPlan {
 public:
  /// REQUIRES every party is a leaf.
  explicit HostPlan(const Call& call);

  /// A subtree all of whose present leaves are in one host.
  struct Block {
    std::size_t host = 0;
    std::size_t first = 0;                  ///< leaf
    std::size_t count = 0;                  ///< leaves, present or not
    std::vector<std::size_t> parties = {};  ///< that are present
    std::vector<std::size_t> numbers = {};  ///< of them within the block, as Reduction wants them
  };

  std::size_t hosts() const { return members_.size(); }
  std::size_t host_of(std::size_t party) const { return host_of_[party]; }
  /// Parties that are present.
  const std::vector<std::size_t>& members(std::size_t host) const { return members_[host]; }
  bool share_host(std::size_t one, std::size_t other) const { return host_of_[one] == host_of_[other]; }

  /// Of the host's members, the one that collects the slice of an owner in another host.
  std::size_t collector(std::size_t host, std::size_t owner) const;

  /// All blocks, in the order of the tree; and the blocks of one host, as numbers of these.
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<std::size_t>& blocks_of(std::size_t host) const { return blocks_of_[host]; }

  /// The first leaves of the blocks, as Reduction wants them: empty where blocks pair up like a tree without gaps.
  const std::vector<std::size_t>& numbers() const { return numbers_; }

 private:
  void find_blocks(const Call& call, std::size_t first, std::size_t count);

  std::vector<std::size_t> host_of_;  // by party; any for those that are not present
  std::vector<std::size_t> index_;    // by party: which of its host
  std::vector<std::vector<std::size_t>> members_;
  std::vector<Block> blocks_;
  std::vector<std::vector<std::size_t>> blocks_of_;
  std::vector<std::size_t> numbers_;
};

}  // namespace lockstep::collective
