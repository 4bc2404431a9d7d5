#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "keeper.hpp"

namespace lockstep::hosts {

namespace {

void enter(int host) {
  char folder[4096];
  const bool has_folder = ::getcwd(folder, sizeof folder) != nullptr;
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, host, 0)));
  if (!process) throw_errno("find the host's first process, " + std::to_string(host));
  if (::setns(process.get(), CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC) != 0) {
    throw_errno("enter the host");
  }
  // The mounts are others now, and with them the root folder has become the current one.
  if (has_folder && ::chdir(folder) != 0) throw_errno(std::string("go to ") + folder);
}

/// Of the process that was called. It may be killed, and then somebody has to end the command and take its end: a
/// process whose parent outside of the namespace has died is left to the machine's first process, and until that takes
/// it the namespace cannot end. So there is a second process between, which gets this signal then.
const int kCallerDied = SIGRTMIN;

/// Hands on every signal that was sent to this process. One of the terminal has reached the command already.
int wait_and_hand_on(pid_t child, const sigset_t& signals) {
  while (true) {
    siginfo_t information{};
    const int number = ::sigwaitinfo(&signals, &information);
    if (number < 0) continue;
    int status = 0;
    if (number == SIGCHLD) {
      if (::waitpid(child, &status, WNOHANG) != child) continue;
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    if (number == kCallerDied) {
      ::kill(child, SIGKILL);
    } else if (information.si_code <= 0) {
      ::kill(child, number);
    }
  }
}

/// Starts a child that gets `signal_of_death` when this process dies, and runs `life` in it.
template <typename Life>
pid_t start_child_that(int signal_of_death, Life life) {
  // The end of this pipe tells the child of a death before it has asked for the signal.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make a pipe");
  const Fd lifeline(ends[0]);
  Fd held(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw_errno("start a process");
  if (child == 0) {
    held.reset();
    ::prctl(PR_SET_PDEATHSIG, signal_of_death);
    pollfd parent{lifeline.get(), 0, 0};
    if (::poll(&parent, 1, 0) != 0) ::_exit(1);
    try {
      life();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(1);
  }
  static Fd kept;  // until this process ends
  kept = std::move(held);
  return child;
}

void become(const std::vector<std::string>& command, const sigset_t& mask) {
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  std::fprintf(stderr, "%s: %s\n", words[0], std::strerror(errno));
  ::_exit(127);
}

}  // namespace

int run_in_host(int host, const std::vector<std::string>& command) {
  sigset_t signals;
  sigset_t before;
  ::sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, kCallerDied}) {
    ::sigaddset(&signals, number);
  }
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t between = start_child_that(kCallerDied, [&] {
    enter(host);
    const pid_t inside = start_child_that(SIGKILL, [&] { become(command, before); });
    ::_exit(wait_and_hand_on(inside, signals));
  });
  return wait_and_hand_on(between, signals);
}

}  // namespace lockstep::hosts
