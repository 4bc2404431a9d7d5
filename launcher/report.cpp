#include "report.hpp"

#include <fmt/core.h>
#include <string.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace lockstep::launcher {

namespace {

std::string advice_after_kill(MemoryEvidence memory) {
  static constexpr const char* kSaveMemory = "use a smaller batch or fewer ranks (-np), or give the job more memory";
  switch (memory) {
    case MemoryEvidence::control_group:
      return fmt::format("the kernel's out-of-memory killer struck in this job's control group; {}", kSaveMemory);
    case MemoryEvidence::machine:
      return fmt::format("the kernel's out-of-memory killer was at work on this machine (see dmesg); {}", kSaveMemory);
    default:
      return "Lockstep did not send this signal. Likely out of memory (see dmesg), a batch system's limit, or a person";
  }
}

/// A rank that waited for one which had already gone, satisfied, misses a call that the other did not make.
std::string left_early(const FailureReport& report) {
  for (const int lost : report.cause.lost_ranks) {
    if (lost < 0 || static_cast<std::size_t>(lost) >= report.all.size()) continue;
    const RankOutcome& other = report.all[static_cast<std::size_t>(lost)];
    if (other.state == RankState::exited && other.code == 0) {
      return fmt::format(
          "rank {} had already finished with exit code 0; look for a collective call that not every rank "
          "makes",
          lost);
    }
  }
  return {};
}

/// "rank 1", and where in a job of several hosts.
std::string who(const RankOutcome& outcome) {
  return outcome.host.empty() ? fmt::format("rank {}", outcome.rank)
                              : fmt::format("rank {} on {}", outcome.rank, outcome.host);
}

// By hand: the C library tells these names only since glibc 2.32.
constexpr std::pair<int, const char*> kSignalNames[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
    {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},       {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
    {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},     {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
    {SIGCHLD, "SIGCHLD"}, {SIGSTKFLT, "SIGSTKFLT"}, {SIGCONT, "SIGCONT"}, {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},
    {SIGTTIN, "SIGTTIN"}, {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
    {SIGPROF, "SIGPROF"}, {SIGVTALRM, "SIGVTALRM"}, {SIGPOLL, "SIGPOLL"}, {SIGPWR, "SIGPWR"},   {SIGSYS, "SIGSYS"},
};

/// The collective in which the others waited for it. What a rank itself was in shows in its own last lines, if it had
/// any.
std::string where_it_was_missed(const FailureReport& report) {
  for (const RankOutcome& other : report.all) {
    if (other.rank == report.cause.rank || other.lost_ranks.count(report.cause.rank) == 0) continue;
    if (!other.noticed_in.empty()) return "; the others waited for it in " + other.noticed_in;
  }
  return {};
}

bool others_were_stopped(const FailureReport& report) {
  return std::any_of(report.all.begin(), report.all.end(),
                     [&](const RankOutcome& other) { return other.rank != report.cause.rank && other.told_to_end; });
}

}  // namespace

std::string signal_name(int signal_number) {
  for (const auto& [number, name] : kSignalNames) {
    if (number == signal_number) return fmt::format("{} ({})", name, number);
  }
  return fmt::format("signal {}", signal_number);
}

bool is_out_of_memory(const FailureReport& report) {
  return report.cause.state == RankState::killed && report.cause.code == SIGKILL &&
         report.memory != MemoryEvidence::none;
}

std::string what_happened(const FailureReport& report) {
  const RankOutcome& cause = report.cause;
  switch (cause.state) {
    case RankState::not_started:
      return fmt::format("{} could not be started: {}: {}", who(cause), report.program, ::strerror(cause.code));
    case RankState::stopped:
      return fmt::format("{} (pid {}) was stopped (state T) and did not take part any more", who(cause), cause.pid);
    case RankState::killed:
      return fmt::format("{} (pid {}) was killed by {}{}", who(cause), cause.pid, signal_name(cause.code),
                         is_out_of_memory(report) ? ": out of memory" : "");
    case RankState::lost:
      return fmt::format("{} was lost with the connection to its host: {}", who(cause), report.lost_host);
    default:
      return fmt::format("{} (pid {}) exited with code {}", who(cause), cause.pid, cause.code);
  }
}

std::string next_step(const FailureReport& report) {
  const RankOutcome& cause = report.cause;
  if (cause.state == RankState::not_started) {
    return "check that the file is a program for this machine, and that the interpreter in its first line exists";
  }
  if (cause.state == RankState::lost) {
    return fmt::format("see whether {} is up and can be reached (ssh {}), and run again; its ranks end by themselves",
                       cause.host, cause.host);
  }
  if (cause.state == RankState::stopped) {
    return "find out who stopped it (a debugger, kill -STOP, a batch system) and run again";
  }
  if (cause.state == RankState::killed) {
    switch (cause.code) {
      case SIGKILL:
        return advice_after_kill(report.memory);
      case SIGBUS:
        return "often a full /dev/shm (see df /dev/shm), or a file that became shorter while it was mapped";
      case SIGSEGV:
      case SIGILL:
      case SIGFPE:
        return report.last_words.empty() ? "a crash in native code; a core file (ulimit -c unlimited) shows where"
                                         : "a crash in native code; see its last lines above";
      case SIGABRT:
        return "the program aborted itself; the lines above say why";
      default:
        return "Lockstep did not send this signal; find out who did";
    }
  }
  if (const std::string hint = left_early(report); !hint.empty()) return hint;
  if (cause.code == 127 || cause.code == 126) return "a shell could not find or run a command; see the lines above";
  if (report.last_words.empty()) return "it wrote nothing to stderr; --output DIR keeps all that each rank writes";
  return "see its last lines above; --output DIR keeps all that each rank writes";
}

std::vector<std::string> describe(const FailureReport& report) {
  std::vector<std::string> lines;
  if (!report.last_words.empty()) {
    lines.push_back(fmt::format("lockstep: last lines of rank {}'s stderr:", report.cause.rank));
    for (const std::string& line : report.last_words) lines.push_back("    " + line);
  }
  lines.push_back(fmt::format("lockstep: root cause: {}{}{}", what_happened(report), where_it_was_missed(report),
                              others_were_stopped(report) ? "; the other ranks were stopped because of it" : ""));
  lines.push_back("lockstep: next step: " + next_step(report));
  return lines;
}

}  // namespace lockstep::launcher
