#include "weights/memory_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "base/memory_limit.hpp"
#include "base/memory_node.hpp"
#include "lockstep/error.hpp"

namespace lockstep::weights {
namespace {

std::uint64_t inode_of(const Fd& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("look at the memory of shared weights");
  return status.st_ino;
}

}  // namespace

Error no_memory_for(std::size_t wanted, std::size_t copies) {
  std::string fewer;
  if (copies > 1) fewer = fmt::format(" LOCKSTEP_MEMORY_NODE=0 gives one copy of the weights instead of {}.", copies);
  return Error(
      ErrorCode::system,
      fmt::format("no memory for shared weights: weights, optimizer state and the gradients of all ranks of "
                  "this host take {} MB. Raise the memory limit of the job or container, or start fewer ranks.{}",
                  (wanted >> 20) + 1, fewer));
}

Fd make_memory_file(std::size_t bytes, std::size_t taken, std::size_t wanted, std::size_t copies) {
  Fd file(::memfd_create("lockstep-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw_errno("make memory for shared weights");
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) throw_errno("size the memory of shared weights");
  const auto left = memory_left();
  if ((left && *left < wanted) || !heap::take_memory(file.get(), 0, taken)) {
    throw no_memory_for(wanted, copies);
  }
  // A peer that could shrink the file could kill everybody else with SIGBUS.
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("seal the memory of shared weights");
  }
  return file;
}

FileAddress address_of(const Fd& file) { return {.pid = ::getpid(), .fd = file.get(), .inode = inode_of(file)}; }

Fd open_memory_file(const FileAddress& address) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw_errno("open the shared weights that rank 0 has made, " + path);
  if (inode_of(file) != address.inode) {
    throw Error(ErrorCode::system, path + " is not what rank 0 has made. Likely cause: ranks in different containers.");
  }
  return file;
}

ReadOnlyView::ReadOnlyView(int file, FilePart part) : bytes_(part.bytes) {
  base_ = heap::map_part(file, part.first, bytes_, PROT_READ,
                         fmt::format("map {} MB of shared weights to read", bytes_ >> 20));
}

ReadOnlyView::~ReadOnlyView() { ::munmap(base_, bytes_); }

Mapping::Mapping(Fd file, std::size_t bytes, FilePart weights, FilePart state)
    : whole_(std::move(file), bytes), weights_(whole_.file(), weights), state_(whole_.file(), state) {}

bool Mapping::commit(const std::byte* first, std::size_t bytes) const {
  const auto left = memory_left();
  if (left && *left < bytes) return false;
  return whole_.take(first, bytes);
}

bool Mapping::commit_on_node(FilePart part, int node) const {
  prefer_memory_node(base() + part.first, part.bytes, node);
  return commit(base() + part.first, part.bytes);
}

void Mapping::give_back(FilePart part) const {
  // Where the kernel refuses, it is kept: a loss of memory, and of nothing else.
  static_cast<void>(::fallocate(whole_.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(part.first), static_cast<off_t>(part.bytes)));
}

}  // namespace lockstep::weights
