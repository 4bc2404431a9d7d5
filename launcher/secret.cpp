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

UniqueFd seal_secret(const std::string& bytes) {
  UniqueFd fd(checked(::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create"));
  if (::pwrite(fd.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("writing the secret");
  }
  checked(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE),
          "sealing the secret");
  return fd;
}

std::string read_secret(const UniqueFd& secret) {
  std::string bytes(kSecretBytes, '\0');
  if (::pread(secret.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("reading the secret");
  }
  return bytes;
}

UniqueFd make_secret() {
  std::string bytes(kSecretBytes, '\0');
  fill_random(bytes.data(), bytes.size());
  UniqueFd fd = seal_secret(bytes);
  ::explicit_bzero(bytes.data(), bytes.size());
  return fd;
}

std::string make_job_id() {
  std::uint64_t id = 0;
  fill_random(&id, sizeof id);
  return fmt::format("{:016x}", id);
}

}  // namespace lockstep::launcher
