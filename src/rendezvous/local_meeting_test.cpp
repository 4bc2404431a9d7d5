#include "rendezvous/local_meeting.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.hpp"

namespace lockstep::rendezvous {
namespace {

MeetingOptions options_for(int rank, int size, const std::string& job) {
  return {.rank = rank,
          .size = size,
          .epoch = 0,
          .job = job,
          .secret = std::string(32, 'k'),
          .version = "1.2.3",
          .timeout = std::chrono::seconds(5)};
}

Fd memory_file() { return Fd(::memfd_create("test", MFD_CLOEXEC)); }

TEST(LocalMeeting, EverybodyGetsTheSameDescriptor) {
  constexpr int kSize = 9;
  std::vector<std::thread> ranks;
  std::atomic<int> met{0};
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      LocalMeeting meeting(options_for(rank, kSize, "same"), memory_file);
      EXPECT_EQ(meeting.pids(), std::vector<pid_t>(kSize, getpid()));
      const char mark = static_cast<char>('0' + rank);
      EXPECT_EQ(::pwrite(meeting.descriptor().get(), &mark, 1, rank), 1);
      meeting.ready();
      char all[kSize + 1] = {};
      EXPECT_EQ(::pread(meeting.descriptor().get(), all, kSize, 0), kSize);
      EXPECT_STREQ(all, "012345678");
      ++met;
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(met, kSize);
}

std::string failure_of(const MeetingOptions& options) {
  try {
    LocalMeeting meeting(options, memory_file);
    meeting.ready();
  } catch (const Error& error) {
    return error.what();
  }
  return "met";
}

// The sockets that this process has open.
std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  std::error_code gone;  // a thread may close one while we look
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(fd, gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// The name of rank 0's socket, as any process of this user can read it. Other jobs have such sockets too.
std::optional<std::string> name_of_meeting() {
  const std::set<std::string> own = own_sockets();
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const auto at = line.find(" @lockstep-");  // the inode stands before it
    if (at == std::string::npos) continue;
    const auto inode = line.rfind(' ', at - 1) + 1;
    if (own.contains(line.substr(inode, at - inode))) return line.substr(at + 2);
  }
  return std::nullopt;
}

Fd connect_to(const std::string& name) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fd.reset();
  return fd;
}

TEST(LocalMeeting, StrangersGetNothingAndDisturbNobody) {
  const MeetingOptions zero = options_for(0, 2, "strangers");
  std::string outcome;
  std::thread listener([&] { outcome = failure_of(zero); });
  std::optional<std::string> name;
  while (!name) name = name_of_meeting();
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) {
    Fd fd = connect_to(*name);
    ASSERT_TRUE(fd);
    // Garbage of every size, also exactly a hello's; some say nothing at all.
    std::string garbage(static_cast<std::size_t>(i), static_cast<char>(i));
    if (i % 4 != 0) {
      static_cast<void>(::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    } else if (silent.size() < 20) {
      silent.push_back(std::move(fd));
    }
  }
  EXPECT_EQ(failure_of(options_for(1, 2, "strangers")), "met");
  listener.join();
  EXPECT_EQ(outcome, "met");
}

TEST(LocalMeeting, MixedVersionsAndWrongSizesAreRefusedByName) {
  for (bool version : {true, false}) {
    MeetingOptions zero = options_for(0, 2, "mixed");
    MeetingOptions one = options_for(1, 2, "mixed");
    if (version) {
      one.version = "9.9.9";
    } else {
      one.size = 3;
    }
    std::string at_zero;
    std::thread listener([&] { at_zero = failure_of(zero); });
    const std::string at_one = failure_of(one);
    listener.join();
    EXPECT_EQ(at_zero, at_one);
    EXPECT_NE(at_zero.find(version ? "rank 1 has 9.9.9" : "rank 1 of 3"), std::string::npos) << at_zero;
  }
}

}  // namespace
}  // namespace lockstep::rendezvous
