// What the launcher and its agent on another host say to each other, through the standard streams of ssh.
//
// The agent begins with a line of text, by which versions that know nothing else of each other can be told apart. Then
// both sides send frames. The launcher: prepare, start, any number of signal and where, finish, and alive all the time.
// The agent: ready or refused, started for each rank, what the ranks write and how they end, answers, done. Its
// standard input is the agent's leash: at its end the agent ends all that it has started.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "out_of_memory.hpp"
#include "root_cause.hpp"
#include "topology.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

/// The agent's first words.
struct Greeting {
  std::string version;
  std::string launcher_address = {};  ///< the launcher's address as the host sees it; empty: not by ssh
  std::string host_address = {};      ///< the host's address as the launcher reaches it; empty: not by ssh
};

std::string greeting_line(const Greeting& greeting);

/// Nothing when the line is something else: a shell may say more than it was asked.
std::optional<Greeting> parse_greeting(const std::string& line);

/// How often the launcher says that it is there, and after how much silence an agent takes it for gone: a connection
/// that a network has cut without a word looks like one on which nothing is said.
inline constexpr std::chrono::seconds kSignOfLife{5};
inline constexpr std::chrono::seconds kLongestSilence{60};

enum class FrameKind : std::uint8_t {
  prepare,     ///< an Assignment
  ready,       ///< a port that is free, as `number`
  refused,     ///< words; `number` is the exit code
  start,       ///< a Start
  started,     ///< `rank`; its pid as `number`
  output,      ///< `rank`, bytes of its standard output
  error,       ///< `rank`, bytes of its standard error
  stopped,     ///< `rank` was stopped by a signal
  continued,   ///< `rank` goes on
  result,      ///< `rank`, a piece of what the function returned there
  ended,       ///< `rank`, a RankEnd; nothing comes from it any more but output
  signal,      ///< to `rank` and what it has started: `number`
  signal_one,  ///< to `rank` alone: `number`
  where,       ///< where is every rank? The question's number as `number`
  found,       ///< the answer, with the same `number`: the Whereabouts of all ranks that are there
  alive,       ///< the launcher is there; with `number` 1 it will be silent, because it is being paused
  finish,      ///< the job is over; `number` is 1 when all went well
  done,        ///< nothing is left
};

/// `rank` counts within the host.
struct Frame {
  FrameKind kind = FrameKind::done;
  std::uint32_t rank = 0;
  std::uint32_t number = 0;
  std::string payload = {};
};

std::string encode(const Frame& frame);

/// Makes frames of bytes as they come.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_ += bytes; }

  /// The next frame, once it is whole. Throws std::runtime_error for what is no frame.
  std::optional<Frame> next();

 private:
  std::string buffer_;
};

/// All that an agent has to know before it can start ranks, and that is no secret.
struct Assignment {
  std::string job_id;
  std::string folder;
  std::vector<std::string> command;
  bool module = false;
  std::vector<std::string> environment;  ///< of the launcher; see environment_for_other_hosts
  int first_rank = 0;
  int ranks = 0;
  int size = 0;
  int host = 0;
  int hosts = 0;
  Binding binding = Binding::automatic;
  int restart = 0;
  int max_restarts = 0;
  int columns = 0;
};

struct Start {
  std::string secret;
  std::string master_address;
  int master_port = 0;
  std::string call = {};  ///< the function that the ranks call; empty: they are programs
};

struct RankEnd {
  RankState state = RankState::exited;
  int code = 0;
  MemoryEvidence memory = MemoryEvidence::none;
};

std::string encode(const Assignment& assignment);
std::string encode(const Start& start);
std::string encode(const RankEnd& end);
std::string encode(const std::vector<Whereabouts>& ranks);

/// These throw std::runtime_error for bytes that are none, and for numbers that cannot be meant.
Assignment decode_assignment(const std::string& bytes);
Start decode_start(const std::string& bytes);
RankEnd decode_rank_end(const std::string& bytes);
std::vector<Whereabouts> decode_whereabouts(const std::string& bytes);

/// The part of this process's environment that ranks on other hosts get: all that a program may be steered by, without
/// what describes this machine (HOME, TMPDIR, XDG_*, ...) or this session (SSH_*, DISPLAY, ...).
std::vector<std::string> environment_for_other_hosts(const std::vector<std::string>& environment);

}  // namespace lockstep::launcher
