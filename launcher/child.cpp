#include "child.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "processes.hpp"

namespace lockstep::launcher {

namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "pipe2 (are too many files open? see ulimit -n)");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  checked(::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK), "fcntl");
  return pipe;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// A kernel that refuses leaves the rank where it is, which is slower at worst.
void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  if (!cpus.empty()) ::sched_setaffinity(0, sizeof set, &set);
}

/// Everything between fork and exec. Returns only when the program cannot be executed, with errno set.
void become_program(const ChildSettings& settings, pid_t launcher, int output, int error, char* const* arguments,
                    char* const* environment) {
  ::setpgid(0, 0);
  settings.group.store(::getpid());
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before that call, and then nobody would send the signal.
  if (::getppid() != launcher) ::_exit(EXIT_FAILURE);

  ::dup2(settings.standard_input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  ::syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
  for (const int fd : settings.descriptors) ::fcntl(fd, F_SETFD, 0);

  bind_to(settings.cpus);
  ::setrlimit(RLIMIT_NOFILE, &settings.inherited.open_files);
  if (settings.inherited.default_sigpipe) ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &settings.inherited.signal_mask, nullptr);
  ::execvpe(settings.program.path.c_str(), arguments, environment);
}

}  // namespace

Child start_child(const ChildSettings& settings) {
  Pipe output = make_pipe();
  Pipe error = make_pipe();
  Pipe failure = make_pipe();  // closed by a successful exec
  const std::vector<char*> arguments = pointers(settings.program.arguments);
  const std::vector<char*> environment = pointers(settings.environment);
  const pid_t launcher = ::getpid();

  const pid_t pid = checked(::fork(), "fork (is the limit of processes reached? see ulimit -u)");
  if (pid == 0) {
    become_program(settings, launcher, output.write.get(), error.write.get(), arguments.data(), environment.data());
    const int reason = errno;
    if (::write(failure.write.get(), &reason, sizeof reason) != sizeof reason) ::_exit(126);
    ::_exit(127);
  }
  // The child does this as well; whoever comes first spares the other a race.
  ::setpgid(pid, pid);
  settings.group.store(pid);

  Child child{pid, open_process(pid), std::move(output.read), std::move(error.read), std::move(failure.read)};
  if (!child.process) throw_errno("pidfd_open");
  return child;
}

std::optional<int> read_start_error(const Child& child) {
  int reason = 0;
  if (::read(child.start_error.get(), &reason, sizeof reason) == sizeof reason) return reason;
  return std::nullopt;
}

}  // namespace lockstep::launcher
