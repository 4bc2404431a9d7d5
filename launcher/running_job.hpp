// A job from its start to its end: one event loop over the ranks' streams, their processes, and the launcher's signals.
// Its start and its events are in running_job.cpp, its end in running_job_end.cpp; what is different when its ranks are
// on several hosts, in running_job_hosts.cpp; and how it tells where its ranks are, in running_job_where.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "child.hpp"
#include "environment.hpp"
#include "events.hpp"
#include "function_call.hpp"
#include "guardian.hpp"
#include "inquiry.hpp"
#include "out_of_memory.hpp"
#include "program.hpp"
#include "rank.hpp"
#include "remote_hosts.hpp"
#include "root_cause.hpp"
#include "run_options.hpp"
#include "screens.hpp"
#include "signals.hpp"
#include "stack_door.hpp"
#include "unique_fd.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

class RunningJob {
 public:
  /// `restart`: how often the job has been started before. All arguments must outlive the object.
  RunningJob(const RunOptions& options, const Program& program, const InheritedState& inherited, int restart);
  ~RunningJob();
  RunningJob(const RunningJob&) = delete;
  RunningJob& operator=(const RunningJob&) = delete;

  /// Until nothing is left of the job. Returns the launcher's exit code. To be called once.
  int run();

  /// After `run`: a rank failed, nobody wanted the end, and there are restarts left.
  bool is_to_be_restarted() const;

 private:
  using Clock = std::chrono::steady_clock;

  enum class Phase {
    running,
    judging,   // a rank has failed; we are looking for the cause
    stopping,  // the ranks have been told to end
  };

  /// What an event of the loop is about.
  enum class Source : std::uint32_t { signals, screen, process, output, error, host, host_input, host_words, door };

  /// One step on the way to the end: the signal that is sent, and how long it may take effect.
  struct StopStep {
    int signal_number;
    std::chrono::milliseconds patience;
  };

  // After a first failure we look for its cause this long before we touch the other ranks: a killed rank's peers can be
  // gone before the kernel has finished with the killed one.
  static constexpr std::chrono::milliseconds kJudging{150};

  static std::uint64_t event_key(Source source, std::size_t index = 0) {
    return static_cast<std::uint64_t>(source) << 32 | index;
  }

  // Start.
  void start_ranks();
  void note_settings(const std::vector<std::string>& inherited, int threads);
  void note_no_effect();
  JobEnvironment make_environment() const;
  std::string copies_folder(int rank) const;
  void watch(int fd, Source source, std::size_t index = 0) const;

  // Several hosts (running_job_hosts.cpp).
  void start_on_hosts();
  bool is_start_interrupted();
  bool is_connection(pid_t pid);
  Assignment make_assignment() const;
  void read_host(std::size_t index);
  void take_frame(RemoteHost& host, const Frame& frame);
  void lose_host(RemoteHost& host);
  void finish_hosts(bool all_well);
  void give_sign_of_life();
  void watch_unsent();
  void watch_hosts(bool reading);

  // Events.
  void wait_for_events();
  int wait_time() const;
  void on_signal(int number);
  void read_error(Rank& rank);
  void collect(Rank& rank);
  void note_end(const Rank& rank);
  void pause();
  void write_screens();
  void note(const std::string& text);
  void complain(const std::string& text);

  // Where the ranks are (running_job_where.cpp).
  std::vector<RankProcess> living_ranks() const;
  void show_whereabouts();
  void hear_of_being_stuck();
  void speak_of_being_stuck();
  void let_visitor_in();
  void ask_hosts(Inquiry::Asker asker, UniqueFd visitor = UniqueFd());
  void take_found(const RemoteHost& host, const Frame& frame);
  void answer_inquiries();

  // The end.
  void advance();
  bool is_verdict_ready() const;
  std::vector<RankOutcome> outcomes() const;
  void settle_cause();
  void stop_because_of_failure();
  void begin_stop(std::vector<StopStep> steps);
  void take_next_stop_step();
  void signal_ranks(int number);
  void interrupt(int number);
  void end_leftovers();
  void finish_output();
  void report();
  void flush();
  int exit_code();

  const RunOptions& options_;
  const Program& program_;
  const InheritedState& inherited_;
  const int restart_;
  SignalSource signals_;
  const UniqueFd secret_;
  const std::string job_id_;
  const std::vector<std::vector<int>> cpus_;  // of each rank; empty: not bound
  const OutOfMemoryWatch memory_;
  Guardian guardian_;
  const UniqueFd epoll_;
  Screens screens_;
  std::optional<EventLog> events_;
  std::optional<CallFolder> call_;  // the ranks call a function
  bool reading_ = true;             // false while the screens are full
  std::optional<RemoteHosts> hosts_;
  bool all_started_ = false;
  std::vector<std::pair<std::size_t, Frame>> early_frames_;  // of hosts that were quicker than others
  Clock::time_point next_sign_of_life_{};
  std::size_t finished_hosts_ = 0;
  std::map<int, MemoryEvidence> memory_elsewhere_;  // of ranks on other hosts that were killed
  std::string lost_host_;                           // why the first host that was lost is gone

  std::optional<StackDoor> door_;  // with other hosts; ranks of this machine are seen from outside
  std::vector<Inquiry> inquiries_;
  std::uint32_t last_inquiry_ = 0;

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::size_t alive_ = 0;
  int ended_ = 0;

  Phase phase_ = Phase::running;
  Clock::time_point judging_since_{};
  std::vector<StopStep> steps_;  // the next one last
  std::optional<Clock::time_point> step_deadline_;
  std::optional<Clock::time_point> speak_at_;  // a rank has said that it is stuck
  Clock::time_point silent_until_{};
  bool abandoned_ = false;
  std::optional<RankOutcome> cause_;
  int interrupted_by_ = 0;
  Clock::time_point interrupted_at_{};
  bool output_closed_ = false;
};

}  // namespace lockstep::launcher
