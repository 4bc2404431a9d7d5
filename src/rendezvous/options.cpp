// Reads the environment that `lockstep run` and other launchers set. The variables are listed in docs/settings.md.
#include "lockstep/options.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/environment.hpp"
#include "lockstep/error.hpp"
#include "rendezvous/starter.hpp"

namespace lockstep {
namespace {

std::optional<std::chrono::milliseconds> seconds_from(const char* name) {
  auto seconds = number_from<double>(name, 0.0);
  if (!seconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

// The launcher leaves the secret in a sealed memory file whose descriptor we inherit. Reading does not consume it.
std::string secret_from_descriptor() {
  auto fd = number_from<int>("LOCKSTEP_SECRET_FD", 0);
  if (!fd) return {};
  std::string secret(32, '\0');
  if (::pread(*fd, secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "descriptor {} (LOCKSTEP_SECRET_FD) does not hold this job's secret. Likely cause: the program was "
            "started through something that closes inherited descriptors. Start it directly with `lockstep run`, "
            "or let that step keep descriptor {} open (Python: subprocess pass_fds).",
            *fd, *fd));
  }
  return secret;
}

// PyTorch's store listens at MASTER_PORT, so the ranks of Lockstep meet at the port after it.
std::string meeting_from_environment() {
  if (auto given = text_from("LOCKSTEP_MEETING")) return *given;
  const auto host = text_from("MASTER_ADDR");
  const auto port = number_from<int>("MASTER_PORT", 1);
  return host && port ? fmt::format("{}:{}", *host, *port + 1) : std::string();
}

}  // namespace

Options Options::from_environment() {
  Options options;
  if (const auto started = rendezvous::find_starter()) {
    options.rank = started->place.rank;
    options.size = started->place.size;
    options.local_rank = started->place.local_rank;
    options.local_size = started->place.local_size;
    options.job = started->place.job;
    options.meeting = started->place.meeting;
    if (started->channel == rendezvous::Channel::inherited) options.secret = secret_from_descriptor();
  }
  if (auto bytes = number_from<std::size_t>("LOCKSTEP_HEAP_BYTES", 0)) options.heap_bytes = *bytes;
  if (const char* path = std::getenv("LOCKSTEP_TIMELINE")) options.timeline = path;
  options.timeline_mark_steps = number_from<int>("LOCKSTEP_TIMELINE_MARK_STEPS", 0).value_or(0) != 0;
  if (const char* path = std::getenv("LOCKSTEP_FLIGHT_DIR")) options.flight_directory = path;
  options.transport = text_from("LOCKSTEP_TRANSPORT").value_or("");
  options.interface = text_from("LOCKSTEP_INTERFACE").value_or("");
  if (auto given = meeting_from_environment(); !given.empty()) options.meeting = std::move(given);
  options.encrypt_data = number_from<int>("LOCKSTEP_ENCRYPT_DATA", 0).value_or(0) != 0;
  if (auto limit = seconds_from("LOCKSTEP_START_TIMEOUT")) options.start_timeout = *limit;
  if (auto limit = seconds_from("LOCKSTEP_STALL_WARNING")) options.stall_warning = *limit;
  if (auto limit = seconds_from("LOCKSTEP_STALL_LIMIT")) options.stall_limit = *limit;
  return options;
}

}  // namespace lockstep
