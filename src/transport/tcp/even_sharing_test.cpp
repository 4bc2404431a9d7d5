#include "transport/tcp/even_sharing.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "base/fd.hpp"

namespace lockstep::transport::tcp {
namespace {

Fd socket_with(const std::string& name) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())), 0);
  return fd;
}

std::string name_of(const Fd& fd) {
  std::array<char, 16> name{};
  socklen_t size = name.size() - 1;
  EXPECT_EQ(::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
  return name.data();
}

TEST(EvenSharing, LeavesWhatIsEvenAlready) {
  const Fd fd = socket_with("reno");  // the one that every kernel has
  EvenSharing sharing;
  sharing.begin(fd.get());
  EXPECT_EQ(name_of(fd), "reno");
  EXPECT_FALSE(sharing.look(fd.get()));
  EXPECT_EQ(name_of(fd), "reno");
}

TEST(EvenSharing, CallsANetworkLossyWhenItHasSeenEnough) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  EXPECT_FALSE(EvenSharing::is_lossy(0, 0));
  EXPECT_FALSE(EvenSharing::is_lossy(kMegabyte, kMegabyte / 2));  // the first packets found a queue full
  EXPECT_FALSE(EvenSharing::is_lossy(100 * kMegabyte, 100 * 1024));
  EXPECT_TRUE(EvenSharing::is_lossy(100 * kMegabyte, kMegabyte));
}

}  // namespace
}  // namespace lockstep::transport::tcp
