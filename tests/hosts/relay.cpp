#include "relay.hpp"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::hosts {

namespace {

using namespace std::chrono_literals;

// Before each frame the kernel puts what a network card would be told: the frame may be up to 64 KB, to be cut into
// packets, and its checksum may be missing. The device at the other side is handed the same words.
constexpr std::size_t kHeader = 10;  // struct virtio_net_hdr, whose header file is no C++
constexpr std::size_t kAddress = 6;
constexpr std::size_t kMostFrame = kHeader + 14 + 65536;

// A queue that would take longer than this is full, as at the shaped ports of the kernel's own switch.
constexpr auto kLongestQueue = 50ms;
constexpr int kArrivalsAtOnce = 64;

Fd make_tap(const std::string& name) {
  Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!tap) throw_errno("open /dev/net/tun");
  ifreq request{};
  std::copy_n(name.c_str(), std::min<std::size_t>(name.size(), IFNAMSIZ - 1), request.ifr_name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tap.get(), TUNSETIFF, &request) < 0 ||
      ::ioctl(tap.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) {
    throw_errno("make the interface " + name);
  }
  return tap;
}

/// A network takes no part in the competition for cores. Where the system refuses, the relay is later at times.
void stand_aside_from_the_scheduler() {
  const sched_param priority{.sched_priority = 1};
  ::sched_setscheduler(0, SCHED_FIFO, &priority);
  ::prctl(PR_SET_TIMERSLACK, 1UL);
}

bool is_for_many(const std::byte* address) { return (address[0] & std::byte{1}) != std::byte{0}; }

}  // namespace

Relay::Relay(int hosts, LinkShape shape) : shape_(shape), ports_(static_cast<std::size_t>(hosts)) {
  for (std::size_t i = 0; i < ports_.size(); ++i) ports_[i].tap = make_tap("link" + std::to_string(i));
}

void Relay::run() {
  stand_aside_from_the_scheduler();
  std::vector<pollfd> entries;
  for (const Port& port : ports_) entries.push_back({port.tap.get(), POLLIN, 0});
  while (true) {
    deliver_due();
    const auto next = next_departure();
    const auto wait = std::max<Clock::duration>(next - Clock::now(), 0ns);
    const timespec timeout{.tv_sec = wait / 1s, .tv_nsec = (wait % 1s).count()};
    ::ppoll(entries.data(), entries.size(), next == Clock::time_point::max() ? nullptr : &timeout, nullptr);
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      if (entries[i].revents != 0) take_arrivals(i);
    }
  }
}

void Relay::take_arrivals(std::size_t from) {
  for (int i = 0; i < kArrivalsAtOnce; ++i) {
    arrival_.resize(kMostFrame);
    const ssize_t size = ::read(ports_[from].tap.get(), arrival_.data(), arrival_.size());
    if (size < static_cast<ssize_t>(kHeader + 2 * kAddress)) return;
    arrival_.resize(static_cast<std::size_t>(size));
    forward(from, arrival_);
  }
}

void Relay::forward(std::size_t from, const Frame& frame) {
  const std::byte* destination = frame.data() + kHeader;
  std::copy_n(destination + kAddress, kAddress, ports_[from].address.begin());
  const auto is_destination = [&](const Port& port) {
    return std::equal(port.address.begin(), port.address.end(), destination);
  };
  const bool known = !is_for_many(destination) && std::any_of(ports_.begin(), ports_.end(), is_destination);
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    if (i != from && (!known || is_destination(ports_[i]))) enqueue(ports_[i], frame);
  }
}

std::chrono::nanoseconds Relay::time_on_the_wire(std::size_t bytes) const {
  if (shape_.bits_per_second == 0) return 0ns;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(bytes) * 8 * 1'000'000'000 / shape_.bits_per_second);
}

void Relay::enqueue(Port& port, const Frame& frame) {
  const auto first_bit = Clock::now() + shape_.delay;
  if (port.free_after - first_bit > kLongestQueue) return;
  port.free_after = std::max(first_bit, port.free_after) + time_on_the_wire(frame.size() - kHeader);
  port.queue.push_back({port.free_after, frame});
}

void Relay::deliver_due() {
  const auto now = Clock::now();
  for (Port& port : ports_) {
    while (!port.queue.empty() && port.queue.front().at <= now) {
      const Frame& frame = port.queue.front().frame;
      // A frame that the host does not take (its interface is down) is lost, as on any network.
      [[maybe_unused]] const ssize_t written = ::write(port.tap.get(), frame.data(), frame.size());
      port.queue.pop_front();
    }
  }
}

Relay::Clock::time_point Relay::next_departure() const {
  auto next = Clock::time_point::max();
  for (const Port& port : ports_) {
    if (!port.queue.empty()) next = std::min(next, port.queue.front().at);
  }
  return next;
}

}  // namespace lockstep::hosts
