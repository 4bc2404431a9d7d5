// A memory file, mapped so that all processes share it, and so that a forked child does not.
//
// A shared mapping has no copy-on-write: what a child writes, such as a worker that loads data and changes a tensor in
// place, would be written into the parent's memory, and the peers'. So in a forked child the mapping is made anew, as
// the child's own: it reads what is there, and what it writes only it sees. What the parent writes after the fork shows
// up in those pages that the child has not written to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "base/fd.hpp"

namespace lockstep::heap {

/// Takes the memory of a part of a memory file, so that touching it kills nobody. False: there is not so much.
bool take_memory(int file, std::size_t offset, std::size_t bytes);

/// Maps a part of a file where large pages of it can be used, which needs addresses that go with their offsets. Throws
/// Error(system), `what` it is for, when the address space does not suffice.
std::byte* map_part(int file, std::size_t offset, std::size_t bytes, int protection, const std::string& what);

class SharedMapping {
 public:
  /// The first `bytes` of the file. Throws Error(system) when the address space does not suffice.
  SharedMapping(Fd file, std::size_t bytes);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* base() const { return base_; }
  int file() const { return file_.get(); }

  /// Takes the memory of a part, in large pages where that makes sense. False: there is not so much.
  bool take(const std::byte* first, std::size_t bytes) const;

  /// Makes large pages of memory that was taken, where it is large enough, the kernel has some, and it does not take
  /// long.
  void use_large_pages(const std::byte* first, std::size_t bytes) const;

 private:
  friend struct Mappings;
  void make_private() noexcept;

  Fd file_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  bool private_ = false;                                              // this is a forked child
  mutable std::atomic<std::chrono::steady_clock::duration> spent_{};  // on making large pages
};

}  // namespace lockstep::heap
