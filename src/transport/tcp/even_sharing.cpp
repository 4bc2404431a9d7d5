#include "transport/tcp/even_sharing.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::transport::tcp {
namespace {

constexpr std::string_view kUneven = "bbr";
constexpr std::array<std::string_view, 2> kEven = {"cubic", "reno"};  // a system may allow the first to its root alone
constexpr std::uint64_t kEnoughBytes = 4 << 20;                       // to judge by
constexpr std::uint64_t kLossy = 200;                                 // one byte in so many

std::string congestion_control(int fd) {
  std::array<char, 16> name{};
  socklen_t size = name.size() - 1;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0 ? name.data() : "";
}

bool ask_for(int fd, std::string_view name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

}  // namespace

void EvenSharing::begin(int fd) {
  const std::string name = congestion_control(fd);
  if (name != kUneven) return;
  const bool changed =
      std::any_of(kEven.begin(), kEven.end(), [&](std::string_view even) { return ask_for(fd, even); });
  if (changed) choice_of_system_ = name;
}

bool EvenSharing::look(int fd) {
  if (choice_of_system_.empty()) return false;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (!is_lossy(info.tcpi_bytes_sent, info.tcpi_bytes_retrans)) return false;
  ask_for(fd, choice_of_system_);
  choice_of_system_.clear();
  return true;
}

bool EvenSharing::is_lossy(std::uint64_t bytes_sent, std::uint64_t bytes_sent_again) {
  return bytes_sent >= kEnoughBytes && bytes_sent_again > bytes_sent / kLossy;
}

}  // namespace lockstep::transport::tcp
