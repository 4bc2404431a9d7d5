#include "dry_run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "environment.hpp"
#include "preload.hpp"
#include "rank_output.hpp"
#include "topology.hpp"

namespace lockstep::launcher {

namespace {

bool is_known_beforehand(const std::string& setting) {
  const std::string name = setting.substr(0, setting.find('='));
  return name != "LOCKSTEP_JOB" && name != "TORCHELASTIC_RUN_ID" && name != "LOCKSTEP_SECRET_FD" &&
         name != "MASTER_PORT";
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  static constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string describe_job(const RunOptions& options, const Program& program) {
  const std::vector<std::string> present = current_environment();
  const std::vector<std::string> inherited = with_settings(present, options.environment);
  const bool alone = options.hosts.empty();
  const auto cpus = alone ? bind_ranks(options.processes, options.binding) : std::vector<std::vector<int>>{};
  JobEnvironment job;
  job.threads_per_rank = threads_per_rank(options.processes);
  job.max_restarts = options.max_restarts;
  if (alone) job.preload = find_preload(program.path);
  std::string result;
  for (int rank = 0; rank < options.processes; ++rank) {
    result += rank_prefix(rank, false);
    const Placement place = alone ? place_on_one_machine(rank, options.processes) : place_on_hosts(options.hosts, rank);
    if (!alone) result += options.hosts[static_cast<std::size_t>(place.cross_rank)].name + ": ";
    for (const auto& setting : rank_environment(inherited, job, place)) {
      const bool is_new = std::find(present.begin(), present.end(), setting) == present.end();
      const bool known = is_known_beforehand(setting) && (alone || setting.rfind("MASTER_ADDR=", 0) != 0);
      if (is_new && known) result += shell_quoted(setting) + " ";
    }
    if (!cpus.empty()) result += fmt::format("taskset -c {} ", list_text(cpus[static_cast<std::size_t>(rank)]));
    result += shell_quoted(program.path);
    for (std::size_t i = 1; i < program.arguments.size(); ++i) result += " " + shell_quoted(program.arguments[i]);
    result += "\n";
  }
  return result;
}

}  // namespace lockstep::launcher
