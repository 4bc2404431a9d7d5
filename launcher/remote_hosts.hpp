// All hosts of a job, and the way to its start: reach them, compare versions, let them prepare, and only then start
// ranks. Nothing runs anywhere before every host has said that it can.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent_protocol.hpp"
#include "guardian.hpp"
#include "hosts.hpp"
#include "remote_host.hpp"

namespace lockstep::launcher {

/// A signal has come while hosts were being reached.
struct InterruptedStart {};

class RemoteHosts {
 public:
  /// Connects to all of them at once. `shares`: which ranks each has.
  RemoteHosts(const std::vector<HostSlots>& shares, const SshOptions& ssh, const InheritedState& inherited,
              Guardian& guardian);

  /// Until each has answered, with the version that this program has, and is prepared for `assignment` (of which the
  /// parts that differ between hosts are filled in here). Throws UnavailableError, IncompatibleError or UsageError,
  /// which name every host that failed with ssh's own words. When `signals_fd` becomes readable and `is_interrupted`
  /// says so: InterruptedStart.
  void prepare(Assignment assignment, std::chrono::milliseconds limit, int signals_fd,
               const std::function<bool()>& is_interrupted);

  /// After `prepare`. Where no address is given, it is that at which all can reach rank 0; port 0: a free one there.
  void start(Start start);

  std::size_t size() const { return hosts_.size(); }
  RemoteHost& operator[](std::size_t index) { return *hosts_[index]; }
  RemoteHost& host_of(int rank);

  /// To a rank and what it has started, or to the rank alone.
  void signal(int rank, int number, bool alone = false);

  /// Each answers with the same number.
  void ask_where(std::uint32_t question);

  /// The launcher is there; unless it `will_be_silent`, this is to be said again every kSignOfLife.
  void say_alive(bool will_be_silent);
  void finish(bool all_well);

 private:
  void exchange(const std::function<bool(std::size_t)>& is_done, std::chrono::steady_clock::time_point deadline,
                int signals_fd, const std::function<bool()>& is_interrupted);
  void refuse_unreached(std::chrono::milliseconds limit);
  void refuse_other_versions() const;
  void refuse_refusals() const;
  std::string address_of_first() const;

  std::vector<std::unique_ptr<RemoteHost>> hosts_;
  std::vector<std::optional<Frame>> answers_;  // ready or refused, of each
};

}  // namespace lockstep::launcher
