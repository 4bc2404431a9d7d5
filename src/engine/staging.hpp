// How a tensor reaches the peers and how the result comes back.
#pragma once

#include <string>
#include <vector>

#include "engine/operation.hpp"
#include "transport/transport.hpp"

namespace lockstep::engine {

/// Where peers find a tensor of this rank as it lies. kNowhere: it has to be copied into shared memory.
transport::Place place_of(const void* data, std::size_t bytes, transport::SharedMemory& shared);

/// What to do with a tensor outside the heap, where there is a choice.
enum class Way {
  copied,   ///< peers may do all of the work, so that a rank which computes meanwhile delays nobody
  relayed,  ///< its owner, which waits anyway, does its share: the fastest when every rank has a core
};

/// Decides how the input reaches the peers: inside the notice or attached to it, where it lies, or as a copy in shared
/// memory. Over messages, what is larger is sent later. When the heap is full and peers cannot read this process, the
/// notice says so.
void stage(Operation& operation, transport::Transport& transport, Way way = Way::copied);

/// The largest sum that is worth to be attached to notices, which costs bytes and saves a round trip: of the three ways
/// through the network that slices take, two. Ranks that think otherwise of it waste bytes; results stay the same,
/// since what is done follows from the notices. `ranks_of_hosts`: how many are in each.
std::size_t most_attached_sum(const std::vector<std::size_t>& ranks_of_hosts, std::size_t bytes_per_trip);
std::size_t most_attached_sum(const transport::Transport& transport);

/// For people: how the size of a tensor decides what is done between hosts.
std::string choice_text(const transport::Transport& transport);

/// Copies a result that was made in the staged copy to where the caller wants it.
void unstage(Operation& operation);

/// Gives the copies back to the heap.
void drop_staged(Operation& operation, transport::Transport& transport);

/// Fills in what is known of a party's data from its notice.
void describe_party(collective::Party& party, const transport::NoticeRef& notice, const Operation& own,
                    transport::SharedMemory* shared);

/// The memory for a result of `rows` rows of the shape in `like`: the caller's if it gave some, otherwise new.
/// Throws Error(invalid_argument) when the caller's has another size.
std::byte* make_output(Operation& operation, const transport::NoticeDetail& like, std::int64_t rows);

}  // namespace lockstep::engine
