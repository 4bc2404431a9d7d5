// What can be known about a request before it meets its peers: whether it makes sense, and what is announced of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/operation.hpp"
#include "transport/notice.hpp"

namespace lockstep::engine {

/// Makes a reduction take partial sums: its input has one more dimension in front, as leaf_blocks says. Throws
/// Error(invalid_argument) when it has not.
void take_partials(Request& request, const LeafRange& leaves);

/// A reduction, if it is one, of the simplest kind: every rank gives one tensor, and gets the result in its type, as it
/// is.
bool is_plain(const Request& request);

/// Fills in what a caller may leave to the engine: equal splits, and which side of a pair is `rank`. Throws
/// Error(invalid_argument) for rows that do not divide evenly. REQUIRES: the group is set.
void complete_request(Request& request, int rank);

/// Throws Error(invalid_argument) for a request that makes no sense on `rank`. REQUIRES: the group is set.
void check_request(const Request& request, int rank);

/// Everything in the notice except identity and data. Throws Error(invalid_argument) for a tensor that cannot be
/// described.
void announce_in(transport::Notice& notice, const Request& request);

/// Tells apart the series in which operations are counted: by group and name, or by sender, receiver and tag. A hash,
/// as every identity that travels between ranks is.
using NameKey = std::uint64_t;
NameKey name_key(const Request& request);
NameKey name_key_in_world(std::string_view name);

/// The number of the `use`-th operation of that key since the last join, or in that step.
std::uint64_t identity_by_name(NameKey key, std::uint64_t joins, fusion::Step step, std::uint64_t use);

/// True for operations that have no name and are no pair: they are counted in the order of submission.
bool counts_by_order(const Request& request);

/// The number of the `order`-th of them.
std::uint64_t identity_by_order(negotiation::GroupId group, std::uint64_t joins, std::uint64_t order);

/// nullptr means the world, too.
bool is_world(const negotiation::MembersPtr& group);

/// Who must announce the operation.
negotiation::MembersPtr members_of(const Request& request, int rank);
negotiation::MembersPtr pair_of(int one, int other);

}  // namespace lockstep::engine
