#include "keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>

#include "host_spaces.hpp"
#include "lockstep/error.hpp"

namespace lockstep::hosts {

namespace {

Fd bind_name(const std::string& set) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = socket_name(set);
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE) throw_errno("bind the name of the set");
    throw Error(ErrorCode::invalid_argument, "there are test hosts named " + set +
                                                 " already. Remove them with `tools/hosts down --name " + set +
                                                 "`, or choose another --name");
  }
  return fd;
}

Fd watch_owner(int owner) {
  if (owner == 0) return {};
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, owner, 0)));
  if (!fd) throw_errno("watch process " + std::to_string(owner));
  return fd;
}

Fd signals_of_children() {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_SETMASK, &child, nullptr);
  return Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Takes all children that have ended; true when `awaited` was among them.
bool reap(const Fd& signals, pid_t awaited) {
  signalfd_siginfo information;
  while (::read(signals.get(), &information, sizeof information) > 0) {
  }
  bool found = false;
  for (pid_t pid; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) found = found || pid == awaited;
  return found;
}

/// Starts a process with namespaces of its own, in which `life` is run to its end.
template <typename Life>
pid_t start(unsigned long spaces, Life life) {
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, spaces | SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (pid < 0) throw_errno("start a process with namespaces of its own");
  if (pid > 0) return pid;
  try {
    life();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(1);
}

/// Starts the hosts, and waits until each of them is furnished.
void start_hosts(const SetOfHosts& set) {
  for (int i = 0; i < set.count; ++i) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) throw_errno("make a pipe");
    const Fd read_end(ready[0]);
    Fd write_end(ready[1]);
    start(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC, [&] {
      furnish_host(i, set.count);
      const Fd signals = signals_of_children();
      if (::write(write_end.get(), "", 1) != 1) return;
      detach_from_starter();
      pollfd entry{signals.get(), POLLIN, 0};
      while (::poll(&entry, 1, -1) >= 0 || errno == EINTR) reap(signals, -1);
    });
    write_end.reset();
    char byte = 0;
    if (::read(read_end.get(), &byte, 1) != 1) {
      throw Error(ErrorCode::system, "host " + std::to_string(i) + " could not be made");
    }
  }
}

/// The keeper's part after all is made: until the owner ends, or the relay, or the starter before it has settled the
/// set.
class Watch {
 public:
  Watch(Fd door, Fd owner, pid_t relay) : door_(std::move(door)), owner_(std::move(owner)), relay_(relay) {}

  void until_the_end() {
    const Fd signals = signals_of_children();
    bool settled = false;
    while (true) {
      std::vector<pollfd> entries = {{settled ? -1 : STDIN_FILENO, POLLIN, 0},
                                     {owner_.get(), POLLIN, 0},
                                     {signals.get(), POLLIN, 0},
                                     {door_.get(), POLLIN, 0}};
      for (const auto& [fd, visitor] : visitors_) entries.push_back({fd, POLLIN, 0});
      if (::poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[0].revents != 0) {
        if (!said_settled()) return;
        settled = true;
        detach_from_starter();
      }
      if (entries[1].revents != 0) return;
      if (entries[2].revents != 0 && reap(signals, relay_)) return;
      if (entries[3].revents != 0) admit();
      for (std::size_t i = 4; i < entries.size(); ++i) {
        if (entries[i].revents != 0) visitors_.erase(entries[i].fd);
      }
    }
  }

 private:
  static bool said_settled() {
    char text[8];
    return ::read(STDIN_FILENO, text, sizeof text) == sizeof text && std::memcmp(text, "settled\n", sizeof text) == 0;
  }

  /// Whoever has connected asks the kernel for this process, and stays while the answer has to be true.
  void admit() {
    Fd visitor(::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (visitor) visitors_.emplace(visitor.get(), std::move(visitor));
  }

  Fd door_;
  Fd owner_;
  pid_t relay_;
  std::map<int, Fd> visitors_;
};

void be_keeper(const SetOfHosts& set, Fd door, Fd owner) {
  ::prctl(PR_SET_NAME, "hosts-keeper");
  ::setsid();
  // Neither Ctrl-C nor the end of a terminal reaches it; from outside of its namespace only SIGKILL does.
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0) throw_errno("make the namespaces of the set");
  furnish_keeper();
  pid_t relay = -1;
  if (set.relayed) {
    Relay network(set.count, set.shape);
    relay = start(0, [&] {
      ::prctl(PR_SET_NAME, "hosts-relay");
      detach_from_starter();
      network.run();
    });
  }
  start_hosts(set);
  // From here on it can be found: the kernel tells those who connect which process listens.
  if (::listen(door.get(), 64) != 0) throw_errno("listen at the name of the set");
  if (::write(STDOUT_FILENO, "made\n", 5) != 5) throw_errno("tell that the set is made");
  Watch(std::move(door), std::move(owner), relay).until_the_end();
}

}  // namespace

std::string socket_name(const std::string& set) { return "lockstep-hosts/" + set; }

void keep(const SetOfHosts& set) {
  Fd door = bind_name(set.name);
  Fd owner = watch_owner(set.owner);
  start(CLONE_NEWPID, [&] { be_keeper(set, std::move(door), std::move(owner)); });
}

}  // namespace lockstep::hosts
