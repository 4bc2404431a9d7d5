// How a tensor reaches the peers and how the result comes back.
#pragma once

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

/// Decides how the input reaches the peers: inside the notice, where it lies, or as a copy in shared memory. Over
/// messages there is nothing to do. When the heap is full and peers cannot read this process, the notice says so.
void stage(Operation& operation, transport::Transport& transport, Way way = Way::copied);

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
