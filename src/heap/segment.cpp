#include "heap/segment.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/memory_limit.hpp"
#include "heap/arena.hpp"
#include "lockstep/error.hpp"

namespace lockstep::heap {
namespace {

constexpr std::uint64_t kMagic = 0x3170'6574'736b'636cULL;

struct Header {
  std::uint64_t magic;
  SegmentShape shape;
};

std::size_t round_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::size_t liveness_offset() { return round_up(sizeof(Header)); }
// One word per 128 bytes: polling one rank's word must not disturb another's.
constexpr std::size_t kLivenessStride = 128;
static_assert(sizeof(LivenessWord) <= kLivenessStride);

std::size_t control_offset(const SegmentShape& shape) {
  return liveness_offset() + round_up(shape.ranks * kLivenessStride);
}
std::size_t arena_offset(const SegmentShape& shape) {
  return control_offset(shape) + shape.ranks * round_up(shape.control_bytes);
}
// Ranks that allocate alike have their tensors at the same offset, and a reduction walks through all of them side by
// side. AMD's first-level cache guesses the way from a hash of address bits 12 to 27: were arenas a multiple of 256 MB
// apart, these tensors would keep throwing each other out, and the reduction would take eight times as long. So each
// arena lies one page further than such a multiple.
std::size_t arena_stride(const SegmentShape& shape) {
  constexpr std::size_t kHashedSpan = std::size_t{1} << 28;
  return (shape.arena_bytes + kHashedSpan - 1) / kHashedSpan * kHashedSpan + kPage;
}
std::size_t total_bytes(const SegmentShape& shape) { return arena_offset(shape) + shape.ranks * arena_stride(shape); }

// What the program itself may want in the next moment; the memory is better left to it.
constexpr std::size_t kReserve = 16 << 20;

}  // namespace

Fd Segment::create(const SegmentShape& shape) {
  Fd fd(::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("make shared memory");
  const std::size_t bytes = total_bytes(shape);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno(fmt::format("reserve {} MB of shared memory", bytes >> 20));
  }
  // A peer that could shrink the file could kill everybody else with SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_errno("seal shared memory");
  const auto left = memory_left();
  if ((left && *left < arena_offset(shape)) || !take_memory(fd.get(), 0, arena_offset(shape))) {
    throw Error(ErrorCode::system, fmt::format("no memory for the {} MB in which {} ranks meet. Raise the memory limit "
                                               "of the job or container.",
                                               (arena_offset(shape) >> 20) + 1, shape.ranks));
  }
  const std::size_t head = control_offset(shape);
  void* mapped = ::mmap(nullptr, head, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("map shared memory");
  auto* base = static_cast<std::byte*>(mapped);
  *reinterpret_cast<Header*>(base) = {.magic = kMagic, .shape = shape};
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    reinterpret_cast<LivenessWord*>(base + liveness_offset() + rank * kLivenessStride)->initialise();
  }
  ::munmap(base, head);
  return fd;
}

std::shared_ptr<Segment> Segment::attach(const Fd& fd) {
  struct stat status {};
  Header header{};
  if (::fstat(fd.get(), &status) != 0 ||
      ::pread(fd.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    throw_errno("read the shared memory of this host");
  }
  if (header.magic != kMagic || total_bytes(header.shape) != static_cast<std::size_t>(status.st_size)) {
    throw Error(ErrorCode::internal, "the shared memory received from rank 0 is not Lockstep's");
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  Fd own(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!own) throw_errno("keep the shared memory of this host");
  return std::shared_ptr<Segment>(new Segment(std::move(own), bytes, header.shape));
}

bool Segment::commit(const std::byte* first, std::size_t bytes) const {
  const auto left = memory_left();
  if (left && *left < bytes + kReserve) return false;
  return mapping_.take(first, bytes);
}

LivenessWord& Segment::liveness(int rank) {
  return *reinterpret_cast<LivenessWord*>(base_ + liveness_offset() + static_cast<std::size_t>(rank) * kLivenessStride);
}

std::byte* Segment::control(int rank) const {
  return base_ + control_offset(shape_) + static_cast<std::size_t>(rank) * round_up(shape_.control_bytes);
}

std::byte* Segment::arena(int rank) const {
  return base_ + arena_offset(shape_) + static_cast<std::size_t>(rank) * arena_stride(shape_);
}

}  // namespace lockstep::heap
