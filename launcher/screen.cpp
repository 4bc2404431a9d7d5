#include "screen.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace lockstep::launcher {

namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

bool can_take_more(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

bool is_capable_terminal(int fd, const char* term) {
  return ::isatty(fd) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

bool same_target(int fd, int other_fd) {
  struct stat one {};
  struct stat two {};
  return ::fstat(fd, &one) == 0 && ::fstat(other_fd, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string_view fit(std::string_view text, int width) {
  int used = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;
      while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      continue;
    }
    const bool continues_character = (byte & 0xc0) == 0x80;
    if (continues_character) continue;
    if (used == width) return text.substr(0, i);
    ++used;
  }
  return text;
}

Screen::Screen(int fd, ScreenKind kind, bool coloured) : fd_(fd), kind_(kind), coloured_(coloured) {
  struct stat status {};
  waits_ = ::fstat(fd, &status) == 0 && !S_ISREG(status.st_mode);
}

void Screen::line(std::string_view prefix, std::string_view text) {
  if (error_ != 0) return;
  if (!live_.empty()) buffer_.append(kClearLine);
  buffer_.append(prefix).append(text).push_back('\n');
  if (!live_.empty()) draw_live();
}

void Screen::live(const void* owner, std::string_view prefix, std::string_view text) {
  if (kind_ == ScreenKind::plain || error_ != 0) return;
  if (text.empty() && (live_.empty() || owner != live_owner_)) return;
  live_owner_ = owner;
  buffer_.append(kClearLine);
  live_.clear();
  if (!text.empty()) {
    // A line that wraps could not be drawn over; one column stays free because some terminals wrap early.
    live_.append(prefix).append(text);
    live_.resize(fit(live_, terminal_width(fd_) - 1).size());
    draw_live();
  }
}

void Screen::draw_live() {
  buffer_.append(live_);
  if (coloured_) buffer_.append("\x1b[0m");
}

void Screen::write_some() {
  while (error_ == 0 && pending() > 0) {
    if (waits_ && !can_take_more(fd_)) return;
    // A pipe that is ready takes PIPE_BUF bytes without blocking. The descriptor itself stays in blocking mode, because
    // it is shared with whoever started us.
    const std::size_t size = waits_ ? std::min<std::size_t>(pending(), PIPE_BUF) : pending();
    const ssize_t count = ::write(fd_, buffer_.data() + written_, size);
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  if (error_ != 0 || pending() == 0) {
    buffer_.clear();
    written_ = 0;
  } else if (written_ > (std::size_t{1} << 16)) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace lockstep::launcher
