#include "environment.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <thread>
#include <utility>

#include "preload.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// Programs find their place by the names of Lockstep, torchrun or Horovod. The names of Open MPI are left alone:
/// MPI-aware libraries would take them for a real MPI job.
Settings identity(const JobEnvironment& job, const Placement& at) {
  using std::to_string;
  return {
      {"LOCKSTEP_JOB", job.job_id},
      {"LOCKSTEP_SECRET_FD", to_string(job.secret_fd)},
      {"LOCKSTEP_RANK", to_string(at.rank)},
      {"LOCKSTEP_SIZE", to_string(at.size)},
      {"LOCKSTEP_LOCAL_RANK", to_string(at.local_rank)},
      {"LOCKSTEP_LOCAL_SIZE", to_string(at.local_size)},
      {"LOCKSTEP_CROSS_RANK", to_string(at.cross_rank)},
      {"LOCKSTEP_CROSS_SIZE", to_string(at.cross_size)},
      {"LOCKSTEP_RESTART", to_string(job.restart)},
      {"RANK", to_string(at.rank)},
      {"WORLD_SIZE", to_string(at.size)},
      {"LOCAL_RANK", to_string(at.local_rank)},
      {"LOCAL_WORLD_SIZE", to_string(at.local_size)},
      {"GROUP_RANK", to_string(at.cross_rank)},
      {"GROUP_WORLD_SIZE", to_string(at.cross_size)},
      {"ROLE_RANK", to_string(at.rank)},
      {"ROLE_WORLD_SIZE", to_string(at.size)},
      {"TORCHELASTIC_RUN_ID", job.job_id},
      {"TORCHELASTIC_RESTART_COUNT", to_string(job.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", to_string(job.max_restarts)},
      {"MASTER_ADDR", job.master_address},
      {"MASTER_PORT", to_string(job.master_port)},
      {"HOROVOD_RANK", to_string(at.rank)},
      {"HOROVOD_SIZE", to_string(at.size)},
      {"HOROVOD_LOCAL_RANK", to_string(at.local_rank)},
      {"HOROVOD_LOCAL_SIZE", to_string(at.local_size)},
      {"HOROVOD_CROSS_RANK", to_string(at.cross_rank)},
      {"HOROVOD_CROSS_SIZE", to_string(at.cross_size)},
      {"HOROVOD_HOSTNAME", host_name()},
      {"HOROVOD_GLOO_RENDEZVOUS_ADDR", job.master_address},
      {"HOROVOD_GLOO_RENDEZVOUS_PORT", to_string(job.master_port)},
  };
}

Settings defaults(const JobEnvironment& job) {
  Settings settings = {
      // Every rank with a thread per core would make the ranks fight for the cores.
      {"OMP_NUM_THREADS", std::to_string(job.threads_per_rank)},
      // A rank writes into a pipe, where Python would hold lines back, and lose them when it is killed.
      {"PYTHONUNBUFFERED", "1"},
      // A crash in native code then shows the Python stack that led to it.
      {"PYTHONFAULTHANDLER", "1"},
  };
  if (job.columns > 0) settings.emplace_back("COLUMNS", std::to_string(job.columns));
  return settings;
}

/// A rank that is alone on its host shares memory with nobody.
bool is_preloaded(const std::vector<std::string>& inherited, const JobEnvironment& job, const Placement& at) {
  const char* choice = find_variable(inherited, "LOCKSTEP_PRELOAD");
  return !job.preload.empty() && at.local_size > 1 && (choice == nullptr || std::string(choice) != "0");
}

bool has_name(const std::string& entry, const std::string& name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.compare(0, name.size(), name) == 0;
}

}  // namespace

Placement place_on_one_machine(int rank, int size) {
  return {.rank = rank, .size = size, .local_rank = rank, .local_size = size, .cross_rank = 0, .cross_size = 1};
}

const char* find_variable(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment) {
    if (has_name(entry, name)) return entry.c_str() + name.size() + 1;
  }
  return nullptr;
}

std::vector<std::string> with_settings(std::vector<std::string> environment, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const std::string name = setting.substr(0, setting.find('='));
    std::erase_if(environment, [&](const std::string& entry) { return has_name(entry, name); });
    environment.push_back(setting);
  }
  return environment;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const JobEnvironment& job,
                                          const Placement& placement) {
  Settings settings = identity(job, placement);
  for (auto& setting : defaults(job)) {
    if (find_variable(inherited, setting.first) == nullptr) settings.push_back(std::move(setting));
  }
  if (is_preloaded(inherited, job, placement)) {
    const char* before = find_variable(inherited, "LD_PRELOAD");
    settings.emplace_back("LD_PRELOAD", with_preload(before != nullptr ? before : "", job.preload));
  }

  std::vector<std::string> result;
  result.reserve(inherited.size() + settings.size());
  for (const std::string& entry : inherited) {
    bool replaced = false;
    for (const auto& setting : settings) replaced = replaced || has_name(entry, setting.first);
    if (!replaced) result.push_back(entry);
  }
  for (const auto& [name, value] : settings) result.push_back(name + "=" + value);
  return result;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  // More cores than a cpu_set_t holds.
  return static_cast<int>(std::thread::hardware_concurrency());
}

int threads_per_rank(int ranks) { return std::max(1, usable_cores() / ranks); }

int find_free_port() {
  UniqueFd fd(checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  checked(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), "bind to a free port");
  checked(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  return ntohs(address.sin_port);
}

}  // namespace lockstep::launcher
