#include "collective/host_plan.hpp"

#include <map>

#include "base/reduction_tree.hpp"

namespace lockstep::collective {

HostPlan::HostPlan(const Call& call) : host_of_(call.count()), index_(call.count()) {
  std::map<int, std::size_t> known;
  for (std::size_t i = 0; i < call.count(); ++i) {
    if (!call.parties[i].present) continue;
    const auto [found, is_new] = known.emplace(call.transport->host_of(call.parties[i].rank), members_.size());
    if (is_new) members_.emplace_back();
    host_of_[i] = found->second;
    index_[i] = members_[host_of_[i]].size();
    members_[host_of_[i]].push_back(i);
  }
  blocks_of_.resize(members_.size());
  find_blocks(call, 0, call.count());
  for (const Block& block : blocks_) numbers_.push_back(block.first);
  if (pairs_without_gaps(0, call.count(), numbers_)) numbers_.clear();
}

void HostPlan::find_blocks(const Call& call, std::size_t first, std::size_t count) {
  Block block{.first = first, .count = count};
  bool in_one_host = true;
  for (std::size_t i = first; i < first + count; ++i) {
    if (!call.parties[i].present) continue;
    if (block.parties.empty()) block.host = host_of_[i];
    in_one_host &= host_of_[i] == block.host;
    block.parties.push_back(i);
    block.numbers.push_back(i - first);
  }
  if (block.parties.empty()) return;
  if (!in_one_host) {
    find_blocks(call, first, left_leaves(count));
    find_blocks(call, first + left_leaves(count), count - left_leaves(count));
    return;
  }
  if (pairs_without_gaps(0, count, block.numbers)) block.numbers.clear();
  blocks_of_[block.host].push_back(blocks_.size());
  blocks_.push_back(std::move(block));
}

std::size_t HostPlan::collector(std::size_t host, std::size_t owner) const {
  return members_[host][index_[owner] % members_[host].size()];
}

}  // namespace lockstep::collective
