#include "transport/tcp/bells.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep::transport::tcp {

Bell::Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw_errno("make a bell");
}

void Bell::strike() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd(), &one, sizeof one);  // it can only be struck already
}

void Bell::silence() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd(), &count, sizeof count);
}

Sleepers::BellPtr Sleepers::lie_down() {
  BellPtr bell;
  if (spare_.empty()) {
    bell = std::make_shared<const Bell>();
  } else {
    bell = spare_.back();
    spare_.pop_back();
  }
  asleep_.push_back(bell);
  return bell;
}

void Sleepers::get_up(const BellPtr& bell) {
  std::erase(asleep_, bell);
  bell->silence();
  spare_.push_back(bell);
}

void Sleepers::wake_all() const {
  for (const BellPtr& bell : asleep_) bell->strike();
}

}  // namespace lockstep::transport::tcp
