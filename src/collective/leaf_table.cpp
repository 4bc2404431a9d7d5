#include "collective/leaf_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/reduction_tree.hpp"
#include "lockstep/error.hpp"

namespace lockstep::collective {
namespace {

std::vector<const Party*> owners_in_order(const Call& call) {
  std::vector<const Party*> owners;
  for (const Party& party : call.parties) {
    if (party.present && party.leaf_count > 0) owners.push_back(&party);
  }
  std::stable_sort(owners.begin(), owners.end(),
                   [](const Party* a, const Party* b) { return a->first_leaf < b->first_leaf; });
  return owners;
}

std::string ownership_text(const Call& call) {
  std::vector<std::string> parts;
  for (const Party& party : call.parties) {
    if (!party.present) {
      parts.push_back(fmt::format("rank {}: joined", party.rank));
    } else if (party.leaf_count == 0) {
      parts.push_back(fmt::format("rank {}: none", party.rank));
    } else {
      parts.push_back(
          fmt::format("rank {}: {} to {}", party.rank, party.first_leaf, party.first_leaf + party.leaf_count - 1));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

void check_leaf_ranges(const Call& call) {
  if (call.total_leaves == 0) return;
  const bool gaps_allowed = call.present() != call.count();
  const auto owners = owners_in_order(call);
  std::int64_t next = 0;
  bool fits = !owners.empty();
  for (const Party* party : owners) {
    fits &= party->first_leaf == next || (gaps_allowed && party->first_leaf > next);
    next = party->first_leaf + party->leaf_count;
  }
  fits &= next == call.total_leaves || gaps_allowed;
  if (fits) return;
  throw Error(
      ErrorCode::mismatch,
      fmt::format("each of the {} leaves of {} must belong to exactly one rank, but they own: {}. Likely cause: "
                  "ranks have different ideas of who owns which shard.",
                  call.total_leaves, name_of(call.kind), ownership_text(call)));
}

std::uint64_t divisor_of(const Call& call, bool by_contributors) {
  if (call.total_leaves == 0) return by_contributors ? call.present() : call.count();
  if (!by_contributors) return static_cast<std::uint64_t>(call.total_leaves);
  std::int64_t leaves = 0;
  for (const Party& party : call.parties) leaves += party.present ? party.leaf_count : 0;
  return static_cast<std::uint64_t>(leaves);
}

std::size_t partials_of(const Call& call, std::size_t index) {
  const Party& party = call.parties[index];
  if (!party.present) return 0;
  if (call.total_leaves == 0) return 1;
  return leaf_blocks({party.first_leaf, party.leaf_count, call.total_leaves}).size();
}

LeafTable::LeafTable(const Call& call)
    : total_(call.total_leaves == 0 ? call.count() : static_cast<std::size_t>(call.total_leaves)) {
  std::vector<std::pair<std::size_t, Entry>> found;  // leaf number first
  found.reserve(call.count());
  for (std::size_t i = 0; i < call.count(); ++i) {
    const Party& party = call.parties[i];
    if (!party.present) continue;
    if (call.total_leaves == 0) {
      found.emplace_back(i, Entry{.party = i});
      continue;
    }
    std::size_t partial = 0;
    for (const LeafBlock& block : leaf_blocks({party.first_leaf, party.leaf_count, call.total_leaves})) {
      found.emplace_back(block.first, Entry{i, partial, partial * call.bytes()});
      ++partial;
    }
  }
  if (call.total_leaves != 0)
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  numbers_.reserve(found.size());
  entries_.reserve(found.size());
  for (const auto& [number, entry] : found) {
    numbers_.push_back(number);
    entries_.push_back(entry);
  }
  if (pairs_without_gaps(0, total_, numbers_)) numbers_.clear();
}

}  // namespace lockstep::collective
