#include "signals.hpp"

#include <sys/signalfd.h>

namespace lockstep::launcher {

namespace {

bool is_ignored(int signal_number) {
  struct sigaction action {};
  return ::sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalSource::SignalSource() {
  // An ignored SIGCHLD, which some daemons leave to their children, would hide how ranks end.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGCHLD, SIGUSR1, SIGUSR2}) {
    // A blocked signal reaches the descriptor even when it is ignored, hence the question.
    if (!is_ignored(number)) ::sigaddset(&wanted, number);
  }
  checked(::sigprocmask(SIG_BLOCK, &wanted, &previous_), "sigprocmask");
  fd_.reset(checked(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
}

SignalSource::~SignalSource() { ::sigprocmask(SIG_SETMASK, &previous_, nullptr); }

std::optional<int> SignalSource::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace lockstep::launcher
