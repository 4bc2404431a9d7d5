#include "remote_host.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "agent.hpp"
#include "dry_run.hpp"
#include "environment.hpp"
#include "errors.hpp"
#include "hosts.hpp"

namespace lockstep::launcher {

namespace {

constexpr std::size_t kMostWords = 4096;
constexpr std::chrono::milliseconds kAwaitEndOfSsh{500};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

/// What the host's shell is given: this very program where it is in the same place, else the one in PATH.
std::string remote_command() {
  const std::string script =
      fmt::format(R"(p={}; [ -x "$p" ] || p=lockstep; exec "$p" {})", shell_quoted(own_path()), kAgentCommand);
  return "exec sh -c " + shell_quoted(script);
}

/// Nothing is asked of the user, and host keys and the like are as ssh is configured.
Program ssh_program(const std::string& host, const SshOptions& options) {
  std::vector<std::string> words = {
      "ssh", "-T", "-oBatchMode=yes", "-oConnectTimeout=8", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"};
  if (options.port != 0) words.insert(words.end(), {"-p", std::to_string(options.port)});
  if (!options.identity.empty()) words.insert(words.end(), {"-i", options.identity});
  words.insert(words.end(), {"--", host, remote_command()});
  return {"ssh", words};
}

Program program_for(const std::string& host, const SshOptions& options) {
  if (is_this_machine(host)) return {own_path(), {"lockstep", kAgentCommand}};
  return ssh_program(host, options);
}

/// One line, without what ends lines.
std::string as_one_line(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\r') continue;
    if (c == '\n') {
      if (!result.empty() && result.back() != ' ') result += "; ";
    } else {
      result += c;
    }
  }
  while (!result.empty() && (result.back() == ' ' || result.back() == ';')) result.pop_back();
  return result;
}

}  // namespace

RemoteHost::RemoteHost(std::string name, int first_rank, int ranks, const SshOptions& ssh,
                       const InheritedState& inherited, std::atomic<pid_t>& group)
    : name_(std::move(name)), first_rank_(first_rank), ranks_(ranks) {
  int ends[2];
  checked(::pipe2(ends, O_CLOEXEC), "pipe2");
  const UniqueFd theirs(ends[0]);
  input_.reset(ends[1]);
  checked(::fcntl(input_.get(), F_SETFL, O_NONBLOCK), "fcntl");
  static const std::vector<int> kNotBound;
  const std::vector<std::string> environment = current_environment();
  ssh_ = start_child({.program = program_for(name_, ssh),
                      .environment = environment,
                      .standard_input = theirs.get(),
                      .descriptors = {},
                      .cpus = kNotBound,
                      .group = group,
                      .inherited = inherited});
}

bool RemoteHost::read(const std::function<void(const Frame&)>& take) {
  if (!ssh_.standard_output) return false;
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(ssh_.standard_output.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {
    hang_up();
    return false;
  }
  std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
  while (!greeting_ && !bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos) break;
    greeting_ = parse_greeting(line_);
    line_.clear();
  }
  reader_.feed(bytes);
  try {
    while (greeting_) {
      const auto frame = reader_.next();
      if (!frame) break;
      take(*frame);
    }
  } catch (const std::runtime_error& error) {
    complaint_ = error.what();
    hang_up();
  }
  return true;
}

void RemoteHost::read_words() {
  std::array<char, 4096> buffer;
  const ssize_t count = ssh_.standard_error ? ::read(ssh_.standard_error.get(), buffer.data(), buffer.size()) : 0;
  if (count > 0) {
    words_.append(buffer.data(), static_cast<std::size_t>(count));
    if (words_.size() > kMostWords) words_.erase(0, words_.size() - kMostWords);
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    ssh_.standard_error.reset();
  }
}

void RemoteHost::send(const Frame& frame) {
  if (!input_) return;
  unsent_ += encode(frame);
  write_some();
}

void RemoteHost::write_some() {
  while (!unsent_.empty() && input_) {
    const ssize_t count = ::write(input_.get(), unsent_.data() + sent_, unsent_.size() - sent_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) {
      forget_unsent();  // ssh has ended, as its output is about to tell
      input_.reset();
      return;
    }
    sent_ += static_cast<std::size_t>(count);
    if (sent_ == unsent_.size()) forget_unsent();
  }
}

void RemoteHost::forget_unsent() {
  unsent_.clear();
  sent_ = 0;
}

void RemoteHost::hang_up() {
  input_.reset();
  forget_unsent();
  ssh_.standard_output.reset();
}

void RemoteHost::await_end(std::chrono::steady_clock::time_point deadline) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  pollfd process{ssh_.process.get(), POLLIN, 0};
  ::poll(&process, 1, static_cast<int>(std::max<long>(left, 0)));
}

std::string RemoteHost::why_lost() {
  await_end(std::chrono::steady_clock::now() + kAwaitEndOfSsh);
  for (int i = 0; i < 16 && ssh_.standard_error; ++i) read_words();
  siginfo_t information{};
  const bool ended = ::waitid(P_PID, static_cast<id_t>(ssh_.pid), &information, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                     information.si_pid == ssh_.pid;
  const std::string words = as_one_line(words_);
  if (const auto reason = read_start_error(ssh_)) return fmt::format("ssh cannot be started: {}", ::strerror(*reason));
  if (!complaint_.empty()) return complaint_;
  if (ended && information.si_code != CLD_EXITED)
    return fmt::format("ssh was killed by signal {}", information.si_status);
  if (ended && information.si_status == 127 && !greeting_) {
    return fmt::format("Lockstep is not there, neither as {} nor in PATH ({})", own_path(), words);
  }
  if (!words.empty()) return words;
  if (ended && !greeting_) return fmt::format("ssh ended with code {}", information.si_status);
  return "the agent there has ended";
}

}  // namespace lockstep::launcher
