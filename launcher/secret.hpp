// The secret of a job: 32 random bytes in a sealed memfd.
//
// Ranks inherit the descriptor; the environment carries only its number, so the secret is in no argv, no environment
// and no file, and can be read again at any time (pread at offset 0) but never changed.
#pragma once

#include <cstddef>
#include <string>

#include "unique_fd.hpp"

namespace lockstep::launcher {

inline constexpr std::size_t kSecretBytes = 32;

/// Seals bytes as a secret. Throws std::system_error.
UniqueFd seal_secret(const std::string& bytes);

/// The bytes again, for a host that cannot inherit the descriptor. Throws std::system_error.
std::string read_secret(const UniqueFd& secret);

/// Makes a new secret. The descriptor is close-on-exec; whoever hands it to a rank clears that flag in the child.
UniqueFd make_secret();

/// A random name for a job, in hexadecimal. It is no secret.
std::string make_job_id();

}  // namespace lockstep::launcher
