#include "guardian.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <new>
#include <set>
#include <vector>

#include "processes.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

/// The guardian must hold nothing that others wait for: no pipe of a rank, no output of the launcher.
void keep_only(int& fd) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int standard = 0; standard <= 2; ++standard) ::dup2(null, standard);
  fd = ::dup2(fd, 3) >= 0 ? 3 : fd;
  ::syscall(SYS_close_range, 4U, ~0U, 0U);
}

}  // namespace

Guardian::Guardian(int ranks, const std::string& job_id) : count_(static_cast<std::size_t>(ranks)) {
  static_assert(std::atomic<pid_t>::is_always_lock_free, "shared between processes");
  void* memory =
      ::mmap(nullptr, count_ * sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_errno("mmap");
  groups_ = static_cast<std::atomic<pid_t>*>(memory);
  for (std::size_t i = 0; i < count_; ++i) new (&groups_[i]) std::atomic<pid_t>(0);

  const UniqueFd launcher = open_process(::getpid());
  if (!launcher) throw_errno("pidfd_open (Linux 5.3 or later is needed)");
  pid_ = checked(::fork(), "fork");
  if (pid_ == 0) watch(launcher.get(), job_id);
}

Guardian::~Guardian() {
  dismiss();
  ::munmap(groups_, count_ * sizeof(std::atomic<pid_t>));
}

void Guardian::dismiss() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Guardian::watch(int launcher, const std::string& job_id) {
  // Out of reach of the terminal's signals, and of all others that can be refused.
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "lockstep-guard");
  keep_only(launcher);
  if (::chdir("/") != 0) ::_exit(EXIT_FAILURE);

  pollfd entry{launcher, POLLIN, 0};
  while (::poll(&entry, 1, -1) != 1) {
  }

  std::set<pid_t> groups;
  for (std::size_t i = 0; i < count_; ++i) {
    if (const pid_t group = groups_[i].load(); group > 0) groups.insert(group);
  }
  const std::string setting = "LOCKSTEP_JOB=" + job_id;
  end_processes(
      [&] {
        std::vector<pid_t> found;
        for (const ProcessInfo& process : list_processes()) {
          if (!process.is_alive() || process.pid == ::getpid()) continue;
          if (groups.count(process.group) != 0 || has_in_environment(process.pid, setting)) {
            found.push_back(process.pid);
          }
        }
        return found;
      },
      std::chrono::milliseconds(0));
  ::_exit(EXIT_SUCCESS);
}

}  // namespace lockstep::launcher
