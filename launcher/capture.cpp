#include "capture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// False at the end of the stream, and at the deadline.
bool read_more(int fd, Clock::time_point deadline, std::string& text) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  pollfd entry{fd, POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(std::max<long>(left, 0))) <= 0) return false;
  std::array<char, 4096> buffer;
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

BackgroundCommand::BackgroundCommand(const std::vector<std::string>& arguments) {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "pipe2");
  output_.reset(ends[0]);
  const UniqueFd write(ends[1]);
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);

  pid_ = checked(::fork(), "fork");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(write.get(), STDOUT_FILENO);
    ::dup2(write.get(), STDERR_FILENO);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
}

CommandResult BackgroundCommand::result(Clock::time_point deadline) {
  CommandResult result;
  while (read_more(output_.get(), deadline, result.output)) {
  }
  const int status = end();
  if (WIFEXITED(status) && WEXITSTATUS(status) != 127) result.exit_code = WEXITSTATUS(status);
  return result;
}

/// Returns how it ended. One that has closed its output is given a moment to leave by itself.
int BackgroundCommand::end() {
  int status = -1;
  if (pid_ <= 0) return status;
  const auto patience = Clock::now() + milliseconds(100);
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && Clock::now() < patience) ::usleep(500);
  if (ended == 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return status;
}

}  // namespace lockstep::launcher
