// What can be known about a request before it meets its peers: whether it makes sense, and what is announced of it.
#pragma once

#include <string>

#include "engine/operation.hpp"
#include "transport/notice.hpp"

namespace lockstep::engine {

/// Throws Error(invalid_argument) for a request that makes no sense on `rank`. REQUIRES: the group is set.
void check_request(const Request& request, int rank);

/// Everything in the notice except identity and data. Throws Error(invalid_argument) for a tensor that cannot be
/// described.
void announce_in(transport::Notice& notice, const Request& request);

/// Tells apart the series in which operations are counted: by group and name, or by sender, receiver and tag.
std::string name_key(const Request& request);

/// Who must announce the operation.
negotiation::MembersPtr members_of(const Request& request, int rank);
negotiation::MembersPtr pair_of(int one, int other);

}  // namespace lockstep::engine
