#include "rendezvous/local_meeting.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <fstream>
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

// The name of rank 0's socket, as any process of this user can read it.
std::vector<std::string> abstract_names() {
  std::vector<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    if (auto at = line.find("@lockstep-"); at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  return names;
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
  std::vector<std::string> names;
  while (names.empty()) names = abstract_names();
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) {
    Fd fd = connect_to(names.front());
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
