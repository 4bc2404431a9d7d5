#include "foreign_options.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace lockstep::launcher {

namespace {

using Kind = ForeignOption::Kind;

constexpr const char* kNotElastic = "the number of ranks cannot change in a running job yet; give -np N alone";

constexpr ForeignOption kOptions[] = {
    // What Lockstep has under another name.
    {"--start-timeout", true, Kind::setting, "LOCKSTEP_START_TIMEOUT"},
    {"--gloo-timeout-seconds", true, Kind::setting, "LOCKSTEP_START_TIMEOUT"},
    {"--timeline-filename", true, Kind::setting, "LOCKSTEP_TIMELINE"},
    {"--timeline-mark-cycles", false, Kind::setting, "LOCKSTEP_TIMELINE_MARK_STEPS"},
    {"--stall-check-warning-time-seconds", true, Kind::setting, "LOCKSTEP_STALL_WARNING"},
    {"--stall-check-shutdown-time-seconds", true, Kind::setting, "LOCKSTEP_STALL_LIMIT"},
    {"--no-stall-check", false, Kind::setting, "LOCKSTEP_STALL_WARNING"},
    {"--log-level", true, Kind::setting, "LOCKSTEP_LOG"},
    {"--network-interfaces,--network-interface", true, Kind::setting, "LOCKSTEP_INTERFACE"},

    // horovodrun: which library carries the tensors, and how they are put together.
    {"--gloo", false, Kind::no_effect},
    {"--mpi", false, Kind::no_effect},
    {"--jsrun", false, Kind::no_effect},
    {"--tcp", false, Kind::no_effect},
    {"--mpi-args", true, Kind::no_effect},
    {"--mpi-threads-disable", false, Kind::no_effect},
    {"--no-mpi-threads-disable", false, Kind::no_effect},
    {"--binding-args", true, Kind::no_effect},
    {"--thread-affinity", true, Kind::no_effect},
    {"--disable-cache", false, Kind::no_effect},
    {"--fusion-threshold-mb", true, Kind::no_effect},
    {"--cycle-time-ms", true, Kind::no_effect},
    {"--cache-capacity", true, Kind::no_effect},
    {"--num-nccl-streams", true, Kind::no_effect},
    {"--hierarchical-allreduce", false, Kind::no_effect},
    {"--no-hierarchical-allreduce", false, Kind::no_effect},
    {"--hierarchical-allgather", false, Kind::no_effect},
    {"--no-hierarchical-allgather", false, Kind::no_effect},
    {"--torus-allreduce", false, Kind::no_effect},
    {"--no-torus-allreduce", false, Kind::no_effect},
    {"--autotune", false, Kind::no_effect},
    {"--no-autotune", false, Kind::no_effect},
    {"--autotune-log-file", true, Kind::no_effect},
    {"--autotune-warmup-samples", true, Kind::no_effect},
    {"--autotune-steps-per-sample", true, Kind::no_effect},
    {"--autotune-bayes-opt-max-samples", true, Kind::no_effect},
    {"--autotune-gaussian-process-noise", true, Kind::no_effect},
    {"--no-timeline-mark-cycles", false, Kind::no_effect},
    {"--stall-check", false, Kind::no_effect},
    {"--log-with-timestamp", false, Kind::no_effect},
    {"--log-without-timestamp", false, Kind::no_effect},
    {"--log-hide-timestamp", false, Kind::no_effect},

    // torchrun: how agents find each other, of which there are none, and what it does with output.
    {"--standalone", false, Kind::no_effect},
    {"--rdzv-backend", true, Kind::no_effect},
    {"--rdzv-endpoint", true, Kind::no_effect},
    {"--rdzv-id", true, Kind::no_effect},
    {"--rdzv-conf", true, Kind::no_effect},
    {"--monitor-interval", true, Kind::no_effect},
    {"--start-method", true, Kind::no_effect},
    {"--local-addr", true, Kind::no_effect},
    {"--role", true, Kind::no_effect},
    {"-t,--tee", true, Kind::no_effect},
    {"-r,--redirects", true, Kind::no_effect},
    {"--local-ranks-filter", true, Kind::no_effect},
    {"--no-python", false, Kind::no_effect},

    // What is not there.
    {"--min-np", true, Kind::refused, kNotElastic},
    {"--max-np", true, Kind::refused, kNotElastic},
    {"--min-num-proc", true, Kind::refused, kNotElastic},
    {"--max-num-proc", true, Kind::refused, kNotElastic},
    {"--host-discovery-script", true, Kind::refused, kNotElastic},
    {"--slots-per-host", true, Kind::refused, kNotElastic},
    {"--reset-limit", true, Kind::refused, "write --max-restarts N, which restarts the whole job after a failure"},
    {"--elastic-timeout", true, Kind::refused, kNotElastic},
    {"--blacklist-cooldown-range", true, Kind::refused, kNotElastic},
};

// A wait that nobody is to hear of: longer than any job.
constexpr const char* kNever = "1000000000";

bool is_zero(const std::string& text) { return !text.empty() && text.find_first_not_of("0.") == std::string::npos; }

std::string log_level(std::string level) {
  std::transform(level.begin(), level.end(), level.begin(), [](unsigned char c) { return std::tolower(c); });
  if (level == "trace") return "debug";
  if (level == "warning") return "warn";
  if (level == "fatal") return "error";
  return level;
}

}  // namespace

std::span<const ForeignOption> foreign_options() { return kOptions; }

std::optional<std::string> setting_value(const ForeignOption& option, const std::string& written) {
  const std::string_view target = option.target;
  if (target == "LOCKSTEP_LOG") return log_level(written);
  if (target == "LOCKSTEP_TIMELINE_MARK_STEPS") return "1";
  if (target == "LOCKSTEP_STALL_WARNING" && !option.takes_value) return kNever;
  // Horovod takes several, of which ranks may use any; here it is one.
  if (target == "LOCKSTEP_INTERFACE") return written.substr(0, written.find(','));
  // To Horovod 0 means never, which nothing here is; and DYNAMIC, that the program will start it.
  if (target == "LOCKSTEP_STALL_LIMIT" && is_zero(written)) return std::nullopt;
  if (target == "LOCKSTEP_TIMELINE" && written == "DYNAMIC") return std::nullopt;
  return written;
}

}  // namespace lockstep::launcher
