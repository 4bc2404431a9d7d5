#include "net/refusal_log.hpp"

namespace lockstep::net {

std::optional<std::string> RefusalLog::add(const std::string& from, const std::string& why, Clock::time_point now) {
  ++total_;
  ++untold_;
  last_ = from + ": " + why;
  return due(now);
}

std::optional<std::string> RefusalLog::due(Clock::time_point now) {
  if (untold_ == 0 || (told_ && now - *told_ < kPause)) return std::nullopt;
  const std::string count = untold_ == 1 ? "a connection" : std::to_string(untold_) + " connections";
  const std::string since = told_ ? " since the last such line" : "";
  told_ = now;
  untold_ = 0;
  return "refused " + count + since + " without this job's key (the last from " + last_ +
         "). The job is not disturbed. Likely cause: a scan of the network, or a process with another secret.";
}

}  // namespace lockstep::net
