#include "remote_hosts.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "errors.hpp"
#include "lockstep/version.hpp"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;

std::string this_host() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

RemoteHosts::RemoteHosts(const std::vector<HostSlots>& shares, const SshOptions& ssh, const InheritedState& inherited,
                         Guardian& guardian)
    : answers_(shares.size()) {
  int first_rank = 0;
  for (const HostSlots& share : shares) {
    std::atomic<pid_t>& group = guardian.group_of(static_cast<int>(hosts_.size()));
    hosts_.push_back(std::make_unique<RemoteHost>(share.name, first_rank, share.slots, ssh, inherited, group));
    first_rank += share.slots;
  }
}

/// Talks to all hosts until each is done or gone.
void RemoteHosts::exchange(const std::function<bool(std::size_t)>& is_done, Clock::time_point deadline, int signals_fd,
                           const std::function<bool()>& is_interrupted) {
  while (true) {
    std::vector<pollfd> entries = {{signals_fd, POLLIN, 0}};
    bool all_done = true;
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      hosts_[i]->write_some();
      all_done = all_done && (is_done(i) || !hosts_[i]->is_connected());
      entries.push_back({hosts_[i]->output_fd(), POLLIN, 0});
      entries.push_back({hosts_[i]->words_fd(), POLLIN, 0});
      entries.push_back({hosts_[i]->input_fd(), POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (all_done || left <= 0) return;
    if (::poll(entries.data(), entries.size(), static_cast<int>(left)) < 0) continue;
    if (entries[0].revents != 0 && is_interrupted()) throw InterruptedStart();
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
      if (entries[1 + 3 * i].revents != 0) hosts_[i]->read([&](const Frame& frame) { answers_[i] = frame; });
      if (entries[2 + 3 * i].revents != 0) hosts_[i]->read_words();
    }
  }
}

void RemoteHosts::prepare(Assignment assignment, std::chrono::milliseconds limit, int signals_fd,
                          const std::function<bool()>& is_interrupted) {
  const auto deadline = Clock::now() + limit;
  exchange([this](std::size_t i) { return hosts_[i]->greeting().has_value(); }, deadline, signals_fd, is_interrupted);
  refuse_unreached(limit);
  refuse_other_versions();

  assignment.hosts = static_cast<int>(hosts_.size());
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    assignment.host = static_cast<int>(i);
    assignment.first_rank = hosts_[i]->first_rank();
    assignment.ranks = hosts_[i]->ranks();
    hosts_[i]->send({FrameKind::prepare, 0, 0, encode(assignment)});
  }
  exchange([this](std::size_t i) { return answers_[i].has_value(); }, deadline, signals_fd, is_interrupted);
  refuse_refusals();
  refuse_unreached(limit);
}

void RemoteHosts::refuse_unreached(std::chrono::milliseconds limit) {
  std::string reasons;
  std::size_t count = 0;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i]->is_connected() && (answers_[i] || hosts_[i]->greeting())) continue;
    const bool gone = !hosts_[i]->is_connected();
    const std::string late = fmt::format("no answer within {:.3g} s", static_cast<double>(limit.count()) / 1000);
    reasons += fmt::format("\n  {}: {}", hosts_[i]->name(), gone ? hosts_[i]->why_lost() : late);
    ++count;
  }
  if (count == 0) return;
  throw UnavailableError(
      fmt::format("{} of {} hosts cannot be used; nothing was started:{}\nTry it by hand: ssh -oBatchMode=yes {} "
                  "lockstep --version",
                  count, hosts_.size(), reasons, reasons.substr(3, reasons.find(':') - 3)));
}

void RemoteHosts::refuse_other_versions() const {
  std::string others;
  for (const auto& host : hosts_) {
    if (host->greeting()->version == version()) continue;
    others += fmt::format("{}{} has {}", others.empty() ? "" : ", ", host->name(), host->greeting()->version);
  }
  if (others.empty()) return;
  throw IncompatibleError(
      fmt::format("{} has Lockstep {}, but {}; nothing was started. Install the same version on all "
                  "hosts",
                  this_host(), version(), others));
}

void RemoteHosts::refuse_refusals() const {
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!answers_[i] || answers_[i]->kind == FrameKind::ready) continue;
    const std::string reason = fmt::format("{}: {}", hosts_[i]->name(), answers_[i]->payload);
    if (answers_[i]->kind == FrameKind::refused && answers_[i]->number == 2) throw UsageError(reason);
    throw UnavailableError(reason);
  }
}

/// By its number, since its name may mean something else to another host: as ssh has reached it, or, when it is this
/// machine, as the first other host has seen it.
std::string RemoteHosts::address_of_first() const {
  const Greeting& first = *hosts_.front()->greeting();
  if (!first.host_address.empty()) return first.host_address;
  for (const auto& host : hosts_) {
    if (!host->greeting()->launcher_address.empty()) return host->greeting()->launcher_address;
  }
  return "127.0.0.1";
}

void RemoteHosts::start(Start start) {
  if (start.master_address.empty()) start.master_address = address_of_first();
  if (start.master_port == 0) start.master_port = static_cast<int>(answers_.front()->number);
  for (const auto& host : hosts_) host->send({FrameKind::start, 0, 0, encode(start)});
}

RemoteHost& RemoteHosts::host_of(int rank) {
  const auto after = std::find_if(hosts_.begin(), hosts_.end(),
                                  [rank](const auto& host) { return rank < host->first_rank() + host->ranks(); });
  return **after;
}

void RemoteHosts::signal(int rank, int number, bool alone) {
  RemoteHost& host = host_of(rank);
  host.send({alone ? FrameKind::signal_one : FrameKind::signal, static_cast<std::uint32_t>(rank - host.first_rank()),
             static_cast<std::uint32_t>(number)});
}

void RemoteHosts::ask_where(std::uint32_t question) {
  for (const auto& host : hosts_) host->send({FrameKind::where, 0, question});
}

void RemoteHosts::say_alive(bool will_be_silent) {
  for (const auto& host : hosts_) host->send({FrameKind::alive, 0, will_be_silent ? 1U : 0U});
}

void RemoteHosts::finish(bool all_well) {
  for (const auto& host : hosts_) host->send({FrameKind::finish, 0, all_well ? 1U : 0U});
}

}  // namespace lockstep::launcher
