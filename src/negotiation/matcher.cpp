#include "negotiation/matcher.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/error.hpp"

namespace lockstep::negotiation {

bool Gathering::agreed() const {
  return std::all_of(arrivals.begin(), arrivals.end(),
                     [&](const auto& arrival) { return arrival.head->signature == arrivals.front().head->signature; });
}

std::vector<int> Gathering::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    if (!arrivals[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

const Gathering& Matcher::arrive(int rank, const transport::NoticeRef& notice) {
  Gathering& gathering = gatherings_[notice.head->id];
  if (gathering.arrivals.empty()) gathering.arrivals.resize(size_);
  auto& place = gathering.arrivals[static_cast<std::size_t>(rank)];
  if (place) throw Error(ErrorCode::internal, fmt::format("rank {} announced one operation twice", rank));
  place = notice;
  ++gathering.arrived;
  return gathering;
}

const Gathering* Matcher::find(std::uint64_t id) const {
  auto found = gatherings_.find(id);
  return found == gatherings_.end() ? nullptr : &found->second;
}

}  // namespace lockstep::negotiation
