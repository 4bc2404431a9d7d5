// The memory in which the ranks of a host keep shared weights: one anonymous file, apart from the engine's heap.
//
// It has its own file because it outlives the engine: survivors go on with it in a new world, whose heap is a new one.
// It has no name and no path, is sealed against shrinking, and goes away with the last process that maps it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/fd.hpp"
#include "heap/shared_mapping.hpp"

namespace lockstep::weights {

/// What another rank needs to open it.
struct FileAddress {
  std::int64_t pid = 0;
  std::int64_t fd = -1;
  std::uint64_t inode = 0;
};

/// Zeros. The memory of the first `taken` bytes is taken, so that touching it kills nobody; the rest is taken by
/// `Mapping::commit`, part by part. Throws Error(system) when there is not so much as `wanted` in all.
Fd make_memory_file(std::size_t bytes, std::size_t taken, std::size_t wanted);
FileAddress address_of(const Fd& file);

/// Opens that of another process of this user. Throws Error(system).
Fd open_memory_file(const FileAddress& address);

/// The whole file, writable, but in a forked child its own; and a part of it once more, read-only.
class Mapping {
 public:
  Mapping(Fd file, std::size_t bytes, std::size_t shown_offset, std::size_t shown_bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* base() const { return whole_.base(); }
  const std::byte* shown() const { return shown_; }

  /// Takes the memory of a part, which may have been taken before. False: there is not so much.
  bool commit(const std::byte* first, std::size_t bytes) const;

 private:
  heap::SharedMapping whole_;
  std::size_t shown_bytes_;
  std::byte* shown_ = nullptr;
};

}  // namespace lockstep::weights
