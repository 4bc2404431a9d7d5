#include <algorithm>
#include <utility>

#include "running_job.hpp"

namespace lockstep::launcher {

namespace {

using std::chrono::milliseconds;

// When one rank says that it is stuck, others are about to.
constexpr milliseconds kOthersStuckToo{300};
constexpr std::chrono::seconds kSilence{5};  // between two such reports
// Whoever asks more often than hosts answer has to wait outside.
constexpr std::size_t kMostInquiries = 16;

}  // namespace

void RunningJob::hear_of_being_stuck() {
  if (!speak_at_) speak_at_ = std::max(Clock::now() + kOthersStuckToo, silent_until_);
}

std::vector<RankProcess> RunningJob::living_ranks() const {
  std::vector<RankProcess> processes;
  for (const auto& rank : ranks_) {
    if (rank->is_alive()) processes.push_back({rank->number(), rank->pid()});
  }
  return processes;
}

/// Without other hosts this and the next take up to half a second, in which nothing else is done.
void RunningJob::show_whereabouts() {
  if (hosts_) {
    ask_hosts(Inquiry::Asker::user);
    return;
  }
  for (const std::string& line : describe(find_whereabouts(living_ranks()))) complain(line);
}

void RunningJob::speak_of_being_stuck() {
  speak_at_.reset();
  if (hosts_) {
    ask_hosts(Inquiry::Asker::stall);
    silent_until_ = Clock::now() + kSilence;
    return;
  }
  const std::vector<Whereabouts> found = find_whereabouts(living_ranks());
  if (waiting_sentence(found).empty()) return;  // it has gone on meanwhile
  for (const std::string& line : describe_missing(found)) complain(line);
  write_screens();  // nothing else may happen for a long time
  silent_until_ = Clock::now() + kSilence;
}

void RunningJob::let_visitor_in() {
  if (UniqueFd visitor = door_->let_in()) ask_hosts(Inquiry::Asker::visitor, std::move(visitor));
}

void RunningJob::ask_hosts(Inquiry::Asker asker, UniqueFd visitor) {
  if (inquiries_.size() >= kMostInquiries) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < hosts_->size(); ++i) names.push_back((*hosts_)[i].name());
  inquiries_.emplace_back(++last_inquiry_, asker, std::move(names), std::move(visitor));
  hosts_->ask_where(last_inquiry_);
}

void RunningJob::take_found(const RemoteHost& host, const Frame& frame) {
  std::size_t index = 0;
  while (&(*hosts_)[index] != &host) ++index;
  for (Inquiry& inquiry : inquiries_) {
    if (inquiry.number() == frame.number) inquiry.take(index, decode_whereabouts(frame.payload));
  }
}

void RunningJob::answer_inquiries() {
  const auto is_over = [](const Inquiry& inquiry) { return inquiry.is_over(); };
  if (std::none_of(inquiries_.begin(), inquiries_.end(), is_over)) return;
  for (const Inquiry& inquiry : inquiries_) {
    if (!inquiry.is_over()) continue;
    std::string text;
    for (const std::string& line : inquiry.lines()) {
      text += line + "\n";
      if (inquiry.asker() != Inquiry::Asker::visitor) complain(line);
    }
    if (inquiry.asker() == Inquiry::Asker::visitor) answer(inquiry.visitor(), text);
  }
  std::erase_if(inquiries_, is_over);
  write_screens();  // nothing else may happen for a long time
}

}  // namespace lockstep::launcher
