#include "secret.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <cstdint>

namespace lockstep::launcher {

namespace {

void fill_random(void* bytes, std::size_t size) {
  // Requests of up to 256 bytes are never cut short once the kernel's generator is ready.
  while (::getrandom(bytes, size, 0) != static_cast<ssize_t>(size)) {
    if (errno != EINTR) throw_errno("getrandom");
  }
}

}  // namespace

UniqueFd make_secret() {
  UniqueFd fd(checked(::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create"));
  unsigned char bytes[kSecretBytes];
  fill_random(bytes, sizeof bytes);
  const ssize_t written = ::pwrite(fd.get(), bytes, sizeof bytes, 0);
  ::explicit_bzero(bytes, sizeof bytes);
  if (written != static_cast<ssize_t>(kSecretBytes)) throw_errno("writing the secret");
  checked(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
          "sealing the secret");
  return fd;
}

std::string make_job_id() {
  std::uint64_t id = 0;
  fill_random(&id, sizeof id);
  return fmt::format("{:016x}", id);
}

}  // namespace lockstep::launcher
