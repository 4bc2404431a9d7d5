// Another user on the same machine, who knows everything that the ranks know except whose processes they are.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "lockstep/error.hpp"
#include "rendezvous/job_secret.hpp"
#include "rendezvous/local_meeting.hpp"

namespace lockstep::rendezvous {
namespace {

constexpr uid_t kNobody = 65534;

MeetingOptions options_for(int rank, const std::string& secret) {
  return {.rank = rank,
          .size = 2,
          .epoch = 0,
          .job = "stranger",
          .secret = secret,
          .version = "1.2.3",
          .timeout = std::chrono::seconds(5)};
}

std::string outcome_of(const MeetingOptions& options) {
  try {
    LocalMeeting meeting(options, [] { return Fd(::memfd_create("test", MFD_CLOEXEC)); });
    meeting.ready();
  } catch (const Error& error) {
    return error.what();
  }
  return "met";
}

// Exit code 0: turned away as one who belongs to another user.
pid_t start_stranger(const std::string& secret) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(kNobody) != 0) ::_exit(2);
    ::_exit(outcome_of(options_for(1, secret)) == "another user listens in rank 0's place" ? 0 : 1);
  }
  return child;
}

TEST(Stranger, IsTurnedAwayAndTheJobIsNotDisturbed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process of another user";
  const std::string secret =
      job_secret({.by = "test",
                  .channel = Channel::credentials,
                  .place = {.rank = 0, .size = 2, .local_size = 2, .job = std::to_string(getpid())}},
                 {})
          .secret;
  const pid_t stranger = start_stranger(secret);
  std::string outcome;
  std::thread zero([&] { outcome = outcome_of(options_for(0, secret)); });
  int status = 0;
  EXPECT_EQ(::waitpid(stranger, &status, 0), stranger);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(outcome_of(options_for(1, secret)), "met");
  zero.join();
  EXPECT_EQ(outcome, "met");
}

}  // namespace
}  // namespace lockstep::rendezvous
