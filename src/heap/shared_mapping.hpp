// A memory file, mapped so that all processes share it, and so that a forked child does not.
//
// A shared mapping has no copy-on-write: what a child writes, such as a worker that loads data and changes a tensor in
// place, would be written into the parent's memory, and the peers'. So in a forked child the mapping is made anew, as
// the child's own: it reads what is there, and what it writes only it sees. What the parent writes after the fork shows
// up in those pages that the child has not written to.
#pragma once

#include <cstddef>

#include "base/fd.hpp"

namespace lockstep::heap {

/// Takes the memory of a part of a memory file, so that touching it kills nobody. False: there is not so much.
bool take_memory(int file, std::size_t offset, std::size_t bytes);

class SharedMapping {
 public:
  /// The first `bytes` of the file. Throws Error(system) when the address space does not suffice.
  SharedMapping(Fd file, std::size_t bytes);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::byte* base() const { return base_; }
  int file() const { return file_.get(); }

 private:
  friend struct Mappings;
  void make_private() noexcept;

  Fd file_;
  std::size_t bytes_;
  std::byte* base_ = nullptr;
  bool private_ = false;  // this is a forked child
};

}  // namespace lockstep::heap
