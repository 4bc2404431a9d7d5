#include "launcher/processes.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

/// A child that waits for a signal, ignoring SIGTERM if told so.
pid_t start_waiting_child(bool ignores_term) {
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a failed test leaves nothing behind
    ::signal(SIGTERM, ignores_term ? SIG_IGN : SIG_DFL);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return pid;
}

int signal_that_ended(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(Processes, reads_a_stat_line_whatever_the_name_holds) {
  const auto info = parse_process_stat("42 (a) b (c) T 7 40 40 0 -1 4194308 123 0");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->pid, 42);
  EXPECT_EQ(info->state, 'T');
  EXPECT_EQ(info->parent, 7);
  EXPECT_EQ(info->group, 40);
  EXPECT_TRUE(info->exiting);
  EXPECT_FALSE(parse_process_stat(""));
}

TEST(Processes, sees_itself) {
  const auto info = read_process(::getpid());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->parent, ::getppid());
  EXPECT_TRUE(info->is_alive());
  EXPECT_FALSE(info->exiting);
  EXPECT_FALSE(read_process(-1));
}

/// Starts and collects children as fast as it can, until it is killed.
pid_t start_breeder() {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (true) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
  }
}

TEST(Processes, bears_with_processes_that_vanish_while_it_looks) {
  std::vector<pid_t> breeders;
  for (int i = 0; i < 4; ++i) breeders.push_back(start_breeder());
  for (int round = 0; round < 200; ++round) {
    for (const pid_t breeder : breeders) EXPECT_TRUE(read_process(breeder));
    for (const pid_t pid : living_descendants(::getpid(), -1)) has_in_environment(pid, "A=b");
  }
  for (const pid_t breeder : breeders) {
    ::kill(breeder, SIGKILL);
    EXPECT_EQ(signal_that_ended(breeder), SIGKILL);
  }
}

TEST(Processes, ends_the_polite_with_a_request_and_the_stubborn_by_force) {
  const pid_t polite = start_waiting_child(false);
  const pid_t stubborn = start_waiting_child(true);
  const auto mine = [&] {
    std::vector<pid_t> found = living_descendants(::getpid(), -1);
    std::erase_if(found, [&](pid_t pid) { return pid != polite && pid != stubborn; });
    return found;
  };
  EXPECT_EQ(mine().size(), 2u);
  EXPECT_TRUE(end_processes(mine, milliseconds(300)).empty());
  EXPECT_EQ(signal_that_ended(polite), SIGTERM);
  EXPECT_EQ(signal_that_ended(stubborn), SIGKILL);
}

TEST(Processes, does_not_count_the_excepted_family) {
  const pid_t child = start_waiting_child(false);
  const auto found = living_descendants(::getpid(), child);
  EXPECT_EQ(std::count(found.begin(), found.end(), child), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(signal_that_ended(child), SIGKILL);
}

}  // namespace
}  // namespace lockstep::launcher
