// A question to all hosts of a job where their ranks are, from when it is asked until the answer can be given.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "unique_fd.hpp"
#include "whereabouts.hpp"

namespace lockstep::launcher {

class Inquiry {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Asker {
    user,     ///< by a signal: the answer goes to the job's own output
    stall,    ///< a rank has said that it is stuck: the answer tells who is missing, if it still is
    visitor,  ///< `lockstep stack`
  };

  /// `hosts`: their names. `visitor`: the connection of one.
  Inquiry(std::uint32_t number, Asker asker, std::vector<std::string> hosts, UniqueFd visitor = UniqueFd());

  std::uint32_t number() const { return number_; }
  Asker asker() const { return asker_; }
  const UniqueFd& visitor() const { return visitor_; }

  /// The answer of one host. A second one is not heard.
  void take(std::size_t host, std::vector<Whereabouts> ranks);

  /// All have answered, or have had time enough.
  bool is_over() const { return missing_ == 0 || Clock::now() >= deadline_; }
  Clock::time_point deadline() const { return deadline_; }

  /// All that is known, line by line; empty when a stall is over.
  std::vector<std::string> lines() const;

 private:
  std::uint32_t number_;
  Asker asker_;
  std::vector<std::string> hosts_;
  UniqueFd visitor_;
  std::vector<bool> answered_;
  std::size_t missing_;
  std::vector<Whereabouts> found_;  // in the order of the ranks
  Clock::time_point deadline_;
};

}  // namespace lockstep::launcher
