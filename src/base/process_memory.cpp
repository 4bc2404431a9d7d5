#include "base/process_memory.hpp"

#include <sys/uio.h>

#include <cerrno>

namespace lockstep {
namespace {

template <class Call>
Reach move(Call call, pid_t process, std::uint64_t address, std::byte* local, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{.iov_base = local + done, .iov_len = bytes - done};
    const iovec there{.iov_base = reinterpret_cast<void*>(address + done), .iov_len = bytes - done};
    const ssize_t moved = call(process, &here, 1, &there, 1, 0);
    if (moved < 0 && errno == ESRCH) return Reach::gone;
    if (moved < 0 && errno != EFAULT) return Reach::refused;
    if (moved <= 0) return Reach::no_memory;
    done += static_cast<std::size_t>(moved);
  }
  return Reach::done;
}

}  // namespace

Reach read_process(pid_t process, std::uint64_t address, std::span<std::byte> to) {
  return move(&::process_vm_readv, process, address, to.data(), to.size());
}

Reach write_process(pid_t process, std::uint64_t address, std::span<const std::byte> from) {
  return move(&::process_vm_writev, process, address, const_cast<std::byte*>(from.data()), from.size());
}

}  // namespace lockstep
