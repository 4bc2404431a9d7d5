// Reads the environment that `lockstep run` sets. The variables are listed in docs/settings.md.
#include "lockstep/options.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "lockstep/error.hpp"

namespace lockstep {
namespace {

[[noreturn]] void bad_variable(const char* name, const char* value, const char* wanted) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}={} is not {}. It is set by `lockstep run`; if you set it yourself, correct or unset it.",
                          name, value, wanted));
}

template <class Number>
std::optional<Number> number_from(const char* name, Number least) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  Number value{};
  const char* end = text + std::strlen(text);
  auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < least) {
    bad_variable(name, text, fmt::format("a number of at least {}", least).c_str());
  }
  return value;
}

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

}  // namespace

Options Options::from_environment() {
  Options options;
  auto rank = number_from<int>("LOCKSTEP_RANK", 0);
  auto size = number_from<int>("LOCKSTEP_SIZE", 1);
  if (rank.has_value() != size.has_value()) {
    throw Error(
        ErrorCode::invalid_argument,
        "only one of LOCKSTEP_RANK and LOCKSTEP_SIZE is set. Start the program with `lockstep run`, or unset both.");
  }
  if (rank) {
    options.rank = *rank;
    options.size = *size;
    options.local_rank = number_from<int>("LOCKSTEP_LOCAL_RANK", 0).value_or(*rank);
    options.local_size = number_from<int>("LOCKSTEP_LOCAL_SIZE", 1).value_or(*size);
    options.secret = secret_from_descriptor();
    if (const char* job = std::getenv("LOCKSTEP_JOB")) options.job = job;
  }
  if (auto bytes = number_from<std::size_t>("LOCKSTEP_HEAP_BYTES", 0)) options.heap_bytes = *bytes;
  if (const char* path = std::getenv("LOCKSTEP_TIMELINE")) options.timeline = path;
  if (const char* path = std::getenv("LOCKSTEP_FLIGHT_DIR")) options.flight_directory = path;
  if (auto limit = seconds_from("LOCKSTEP_START_TIMEOUT")) options.start_timeout = *limit;
  if (auto limit = seconds_from("LOCKSTEP_STALL_WARNING")) options.stall_warning = *limit;
  if (auto limit = seconds_from("LOCKSTEP_STALL_LIMIT")) options.stall_limit = *limit;
  return options;
}

}  // namespace lockstep
