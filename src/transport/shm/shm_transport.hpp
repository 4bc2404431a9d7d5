// Ranks of one host over shared memory: notices are written where peers read them, tensors are worked on where they
// lie.
#pragma once

#include <memory>

#include "heap/segment.hpp"
#include "transport/transport.hpp"

namespace lockstep::transport {

/// The shape of the segment that `ranks` ranks need, with `arena_bytes` for the tensors of each.
heap::SegmentShape shm_segment_shape(int ranks, std::size_t arena_bytes);

/// `segment` may be mapped once per process, or be shared by several ranks that are threads of one process.
std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<heap::Segment> segment, int rank);

}  // namespace lockstep::transport
