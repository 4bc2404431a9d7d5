#include "screens.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdlib>

#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

constexpr std::size_t kMostPending = std::size_t{1} << 20;

Screen make_screen(int fd) {
  const bool terminal = is_capable_terminal(fd, std::getenv("TERM"));
  const char* no_colour = std::getenv("NO_COLOR");
  const bool coloured = terminal && (no_colour == nullptr || *no_colour == '\0');
  return Screen(fd, terminal ? ScreenKind::terminal : ScreenKind::plain, coloured);
}

}  // namespace

Screens::Screens() : error_(make_screen(STDERR_FILENO)) {
  if (!same_target(STDOUT_FILENO, STDERR_FILENO)) own_output_ = std::make_unique<Screen>(make_screen(STDOUT_FILENO));
}

void Screens::show_timestamps(bool shown) {
  for (Screen* screen : all()) {
    if (screen != nullptr) screen->show_timestamps(shown);
  }
}

void Screens::write_some(int epoll, std::uint64_t key) {
  for (std::size_t i = 0; i < all().size(); ++i) {
    Screen* screen = all()[i];
    if (screen == nullptr) continue;
    screen->write_some();
    const bool wait = screen->pending() > 0;
    if (wait == waiting_[i]) continue;
    epoll_event event{.events = EPOLLOUT, .data = {.u64 = key}};
    checked(::epoll_ctl(epoll, wait ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, screen->fd(), &event), "epoll_ctl");
    waiting_[i] = wait;
  }
}

bool Screens::are_full() const {
  return error_.pending() > kMostPending || (own_output_ && own_output_->pending() > kMostPending);
}

bool Screens::flush(int interrupt_fd) {
  for (Screen* screen : all()) {
    if (screen == nullptr) continue;
    for (screen->write_some(); screen->pending() > 0; screen->write_some()) {
      std::array<pollfd, 2> entries = {pollfd{screen->fd(), POLLOUT, 0}, pollfd{interrupt_fd, POLLIN, 0}};
      ::poll(entries.data(), entries.size(), -1);
      if (entries[1].revents != 0) return false;
    }
  }
  return true;
}

}  // namespace lockstep::launcher
