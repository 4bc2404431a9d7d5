// What Lockstep throws.
//
// Misuse throws at the call. A failure that happens later travels in the Work handle and is thrown by `wait`.
// Every message says what happened, where (rank, tensor), the likely cause and the next step.
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/export.hpp"

namespace lockstep {

/// The numbers are those of the C interface (`ls_status`) and never change.
enum class ErrorCode : int {
  invalid_argument = 1,  ///< the call itself is wrong; nothing was sent
  mismatch = 2,          ///< ranks disagree about an operation; raised on all of them
  peer_lost = 3,         ///< a rank died, was stopped or left
  timeout = 4,           ///< a wait reached its limit
  aborted = 5,           ///< a rank called abort
  unavailable = 6,       ///< the peers could not be reached at start
  system = 7,            ///< the operating system refused something
  internal = 8,          ///< a defect in Lockstep
  incompatible = 9,      ///< ranks have different versions of Lockstep; raised at start, on all of them
};

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace lockstep
