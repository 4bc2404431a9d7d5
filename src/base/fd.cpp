#include "base/fd.hpp"

#include <cerrno>
#include <cstring>

#include "lockstep/error.hpp"

namespace lockstep {

void throw_errno(const std::string& what) {
  throw Error(ErrorCode::system, "cannot " + what + ": " + std::strerror(errno));
}

}  // namespace lockstep
