// Starts real processes as ranks, without a launcher: fork, engine, body, exit code.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace lockstep::testing_processes {

/// Words that a child leaves for the parent when it ends.
struct Outcome {
  int status = 0;  // as of waitpid
  std::string said;
  bool exited_with(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
  bool killed_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
};

/// One body per rank, run in a process of its own with an engine of its own. What it returns is told to the parent; an
/// exception's text too, with exit code 1. With `Options::meeting` every rank counts as alone on its host.
class Processes {
 public:
  using Body = std::function<std::string(Engine&)>;

  Processes(int size, const Body& body, Options base = {}) {
    base.job = job_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(counter_++);
    base.secret = std::string(32, 's');
    base.size = size;
    base.local_size = base.meeting.empty() ? size : 1;
    if (!base.epoch) base.epoch = 0;
    std::fflush(nullptr);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a rank has started comes to us when the rank is gone
    if (::pipe(ready_) != 0) throw std::runtime_error("pipe");
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (::pipe(ends) != 0) throw std::runtime_error("pipe");
      base.rank = rank;
      base.local_rank = base.meeting.empty() ? rank : 0;
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::setpgid(0, 0);                     // so that what it starts can be ended with it
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a Ctrl-C no longer reaches it
        ::close(ends[0]);
        ready_end_ = ready_[1];
        words_end_ = ends[1];
        run_child(ends[1], body, base);
      }
      ::setpgid(pid, pid);
      ::close(ends[1]);
      children_.push_back({pid, ends[0]});
    }
  }

  ~Processes() {
    end_all();
    for (auto& child : children_) ::close(child.pipe);
    ::close(ready_[0]);
    ::close(ready_[1]);
  }

  /// Ends the calling child as it is, its engine still running.
  [[noreturn]] static void end_at_once(const std::string& said) {
    static_cast<void>(!::write(words_end_, said.data(), said.size()));
    ::_exit(0);
  }

  /// Called by a body that has reached the point of interest.
  static void say_ready() { static_cast<void>(!::write(ready_end_, "r", 1)); }

  /// Blocks until `count` bodies have said so.
  void await_ready(int count) {
    char byte = 0;
    for (int i = 0; i < count; ++i) {
      if (::read(ready_[0], &byte, 1) != 1) throw std::runtime_error("a child ended early");
    }
  }

  /// Ends whatever still runs of the ranks and of what they have started.
  void end_all() {
    for (auto& child : children_) {
      ::kill(-child.group, SIGKILL);
      while (::waitpid(-child.group, nullptr, 0) > 0) continue;
    }
  }

  const std::string& job() const { return job_; }

  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].group; }

  /// Blocks until the child has ended and gives its words.
  Outcome wait(int rank) {
    Child& child = children_[static_cast<std::size_t>(rank)];
    Outcome outcome;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(child.pipe, buffer, sizeof buffer)) > 0;)
      outcome.said.append(buffer, static_cast<std::size_t>(got));
    ::waitpid(child.group, &outcome.status, 0);
    return outcome;
  }

 private:
  struct Child {
    pid_t group;  // its own, with the number of its process
    int pipe;
  };

  [[noreturn]] static void run_child(int pipe, const Body& body, const Options& options) {
    std::string said;
    int code = 0;
    try {
      Engine engine(options);
      said = body(engine);
    } catch (const std::exception& error) {
      said = error.what();
      code = 1;
    }
    static_cast<void>(!::write(pipe, said.data(), said.size()));
    ::_exit(code);
  }

  std::string job_;
  std::vector<Child> children_;
  int ready_[2] = {-1, -1};
  static inline int ready_end_ = -1;
  static inline int words_end_ = -1;
  static inline int counter_ = 0;
};

}  // namespace lockstep::testing_processes
