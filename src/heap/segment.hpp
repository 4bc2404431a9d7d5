// The shared memory of a host: one anonymous memory file, mapped whole by every local rank.
//
//     header | liveness words | control block of rank 0, 1, ... | arena of rank 0 | arena of rank 1 | ...
//
// It has no name and no path, is sealed against shrinking, and goes away with the last process that maps it. Arenas are
// sparse: a page costs memory only when it is touched. A forked child has a private copy of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.hpp"
#include "heap/liveness.hpp"
#include "heap/shared_mapping.hpp"

namespace lockstep::heap {

struct SegmentShape {
  std::uint32_t ranks = 1;
  std::size_t control_bytes = 0;  ///< per rank, for the transport
  std::size_t arena_bytes = 0;    ///< per rank, for tensors
};

class Segment {
 public:
  /// A new memory file of that shape, zeroed, with its liveness words initialised.
  static Fd create(const SegmentShape& shape);

  /// Maps it. Throws Error(system) when the address space does not suffice.
  static std::shared_ptr<Segment> attach(const Fd& fd);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentShape& shape() const { return shape_; }
  LivenessWord& liveness(int rank);
  std::byte* control(int rank) const;
  std::byte* arena(int rank) const;

  /// Takes memory for that part of the mapping now, so that touching it cannot kill anybody. False: the system refuses,
  /// or a memory limit is so near that the kernel would end a process instead of refusing.
  bool commit(const std::byte* first, std::size_t bytes) const;

 private:
  Segment(Fd file, std::size_t bytes, const SegmentShape& shape)
      : mapping_(std::move(file), bytes), base_(mapping_.base()), shape_(shape) {}

  SharedMapping mapping_;
  std::byte* base_;
  SegmentShape shape_;
};

}  // namespace lockstep::heap
