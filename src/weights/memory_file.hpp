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
#include "lockstep/error.hpp"
#include "weights/layout.hpp"

namespace lockstep::weights {

/// What another rank needs to open it.
struct FileAddress {
  std::int64_t pid = 0;
  std::int64_t fd = -1;
  std::uint64_t inode = 0;
};

/// Zeros. The memory of the first `taken` bytes is taken, so that touching it kills nobody; the rest is taken by
/// `Mapping::commit`, part by part. Throws Error(system) when there is not so much as `wanted` in all.
Fd make_memory_file(std::size_t bytes, std::size_t taken, std::size_t wanted, std::size_t copies = 1);
/// What to throw when there is not: `wanted` as above, with so many copies of the weights.
Error no_memory_for(std::size_t wanted, std::size_t copies);
FileAddress address_of(const Fd& file);

/// Opens that of another process of this user. Throws Error(system).
Fd open_memory_file(const FileAddress& address);

/// A part of a file, to be read only.
class ReadOnlyView {
 public:
  ReadOnlyView(int file, FilePart part);
  ~ReadOnlyView();
  ReadOnlyView(const ReadOnlyView&) = delete;
  ReadOnlyView& operator=(const ReadOnlyView&) = delete;

  const std::byte* base() const { return base_; }

 private:
  std::size_t bytes_;
  std::byte* base_ = nullptr;
};

/// The whole file, writable, but in a forked child its own; and what users see of it once more, read-only.
class Mapping {
 public:
  Mapping(Fd file, std::size_t bytes, FilePart weights, FilePart state);

  std::byte* base() const { return whole_.base(); }
  const std::byte* shown_weights() const { return weights_.base(); }
  const std::byte* shown_state() const { return state_.base(); }

  /// Takes the memory of a part, which may have been taken before. False: there is not so much.
  bool commit(const std::byte* first, std::size_t bytes) const;

  /// See heap::SharedMapping.
  void use_large_pages(std::size_t bytes) const { whole_.use_large_pages(base(), bytes); }

  /// Takes it so that it lies on a memory node: asks the kernel for that, and is the first to touch it, which suffices
  /// on a thread that runs there where the kernel refuses.
  bool commit_on_node(FilePart part, int node) const;

  /// Gives back the memory of a part that nobody uses any more; zeros are left.
  void give_back(FilePart part) const;

 private:
  heap::SharedMapping whole_;
  ReadOnlyView weights_, state_;
};

}  // namespace lockstep::weights
