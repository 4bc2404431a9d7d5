#include "inquiry.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace lockstep::launcher {

namespace {

// A host takes half a second at most to ask its ranks; the rest is for the way.
constexpr std::chrono::milliseconds kTimeToAnswer{2000};

}  // namespace

Inquiry::Inquiry(std::uint32_t number, Asker asker, std::vector<std::string> hosts, UniqueFd visitor)
    : number_(number),
      asker_(asker),
      hosts_(std::move(hosts)),
      visitor_(std::move(visitor)),
      answered_(hosts_.size()),
      missing_(hosts_.size()),
      deadline_(Clock::now() + kTimeToAnswer) {}

void Inquiry::take(std::size_t host, std::vector<Whereabouts> ranks) {
  if (answered_.at(host)) return;
  answered_[host] = true;
  --missing_;
  for (Whereabouts& where : ranks) {
    where.host = hosts_[host];
    const auto later = std::find_if(found_.begin(), found_.end(),
                                    [&](const Whereabouts& other) { return other.process.rank > where.process.rank; });
    found_.insert(later, std::move(where));
  }
}

std::vector<std::string> Inquiry::lines() const {
  std::vector<std::string> lines;
  if (asker_ == Asker::stall) {
    if (!waiting_sentence(found_).empty()) lines = describe_missing(found_);
  } else {
    lines = describe(found_);
  }
  if (asker_ == Asker::stall && lines.empty()) return lines;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (!answered_[i]) {
      lines.insert(lines.begin(), fmt::format("{} has not answered within {} s", hosts_[i],
                                              std::chrono::duration_cast<std::chrono::seconds>(kTimeToAnswer).count()));
    }
  }
  return lines;
}

}  // namespace lockstep::launcher
