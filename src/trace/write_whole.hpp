// write(2), again and again until all is written.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace lockstep::trace {

/// False, with errno, when the system refuses.
inline bool write_whole(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace lockstep::trace
