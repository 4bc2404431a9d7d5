#include "negotiation/matcher.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "lockstep/error.hpp"

namespace lockstep::negotiation {

bool Gathering::agreed() const {
  const transport::NoticeRef* first = nullptr;
  for (const auto& arrival : arrivals) {
    if (!arrival) continue;
    if (first == nullptr) first = &arrival;
    if (arrival.head->signature != first->head->signature) return false;
  }
  return true;
}

bool Gathering::has(int rank) const {
  const auto index = members->index_of(rank);
  return index && arrivals[*index];
}

std::vector<int> Gathering::missing() const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    if (!arrivals[i]) ranks.push_back(members->ranks[i]);
  }
  return ranks;
}

const Gathering& Matcher::arrive(int rank, const MembersPtr& members, const transport::NoticeRef& notice) {
  Gathering& gathering = gatherings_[notice.head->id];
  if (!gathering.members) {
    gathering.members = members;
    gathering.arrivals.resize(members->ranks.size());
  }
  const auto index = gathering.members->index_of(rank);
  if (!index || gathering.arrivals[*index])
    throw Error(ErrorCode::internal, fmt::format("rank {} announced one operation twice", rank));
  gathering.arrivals[*index] = notice;
  return gathering;
}

std::vector<std::pair<int, std::uint64_t>> Matcher::drop_without(int rank, const Unwanted& unwanted) {
  std::vector<std::pair<int, std::uint64_t>> freed;
  std::erase_if(gatherings_, [&](const auto& entry) {
    const Gathering& gathering = entry.second;
    if (gathering.has(rank)) return false;
    const auto first = std::find_if(gathering.arrivals.begin(), gathering.arrivals.end(),
                                    [](const transport::NoticeRef& arrival) { return static_cast<bool>(arrival); });
    if (!unwanted(entry.first, *first->head)) return false;
    for (std::size_t i = 0; i < gathering.arrivals.size(); ++i) {
      if (gathering.arrivals[i] && gathering.arrivals[i].offer == nullptr)
        freed.emplace_back(gathering.members->ranks[i], gathering.arrivals[i].position);
    }
    return true;
  });
  return freed;
}

const Gathering* Matcher::find(std::uint64_t id) const {
  auto found = gatherings_.find(id);
  return found == gatherings_.end() ? nullptr : &found->second;
}

}  // namespace lockstep::negotiation
