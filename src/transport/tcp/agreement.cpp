#include "transport/tcp/agreement.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lockstep::transport::tcp {
namespace {

bool is_later(const SharedWords& one, const SharedWords& other) {
  return std::tie(one.ballot, one.version) > std::tie(other.ballot, other.version);
}

}  // namespace

Agreement::Agreement(int rank, int size) : rank_(rank), size_(size) {
  words_.seats.resize(static_cast<std::size_t>(size));
}

std::uint64_t Agreement::propose(const Command& command) {
  const std::uint64_t request = ++requests_;
  open_.emplace(request, command);
  ask_adviser(request, command);
  return request;
}

std::optional<bool> Agreement::result(std::uint64_t request) {
  const auto found = results_.find(request);
  if (found == results_.end()) return std::nullopt;
  const bool changed = found->second;
  results_.erase(found);
  return changed;
}

void Agreement::lose(int peer) {
  const int before = adviser();
  if (peer == rank_ || !lost_.insert(peer).second) return;
  std::erase_if(queue_, [&](const Request& request) { return request.asker == peer; });
  awaited_.erase(peer);
  const bool yielded_to_it = role_ == Role::yields && yields_to_ == peer;
  // A leader that is lost may have reached some and not others: somebody must find out, though nobody asks.
  const bool left_unfinished = role_ == Role::follows && adviser() == rank_ && lost_.contains(holder(promised_));
  if (yielded_to_it || left_unfinished) collect();
  go_on();
  if (adviser() == before) return;
  for (const auto& [request, command] : std::map(open_)) ask_adviser(request, command);
}

void Agreement::deliver(int from, const Message& message) {
  if (lost_.contains(from)) return;  // what it sent before it was lost counts only as far as it was read
  std::visit([&](const auto& one) { handle(from, one); }, message);
}

int Agreement::holder(std::uint64_t ballot) const {
  return static_cast<int>(ballot % static_cast<std::uint64_t>(size_));
}

int Agreement::adviser() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (!lost_.contains(rank)) return rank;
  }
  return rank_;
}

void Agreement::ask_adviser(std::uint64_t request, const Command& command) {
  if (adviser() == rank_) {
    accept({.asker = rank_, .number = request, .command = command});
  } else {
    send(adviser(), Propose{.request = request, .command = command});
  }
}

void Agreement::handle(int from, const Propose& message) {
  accept({.asker = from, .number = message.request, .command = message.command});
}

void Agreement::handle(int, const Result& message) {
  if (open_.erase(message.request) > 0) results_[message.request] = message.changed;
}

// --- everybody's part: to promise, and to take what a leader spreads

void Agreement::handle(int from, const Ask& message) {
  if (message.ballot <= promised_) return send(from, Refuse{.promised = promised_});
  promised_ = message.ballot;
  send(from, Tell{.ballot = message.ballot, .words = words_});
}

void Agreement::handle(int from, const Snapshot& message) {
  if (message.words.ballot < promised_) return send(from, Refuse{.promised = promised_});
  promised_ = message.words.ballot;
  words_ = message.words;
  send(from, Ack{.ballot = words_.ballot, .version = words_.version});
  if (role_ == Role::yields && yields_to_ == from) collect();
}

// --- the leader's part

void Agreement::accept(const Request& request) {
  queue_.push_back(request);
  if (role_ == Role::follows) collect();
  go_on();
}

// A ballot says who holds it, so no two ranks ever have the same.
void Agreement::collect() {
  const auto ranks = static_cast<std::uint64_t>(size_);
  ballot_ = (promised_ / ranks + 1) * ranks + static_cast<std::uint64_t>(rank_);
  promised_ = ballot_;
  draft_ = words_;
  role_ = Role::collects;
  awaited_ = living_peers();
  for (const int peer : awaited_) send(peer, Ask{.ballot = ballot_});
}

void Agreement::handle(int from, const Tell& message) {
  if (role_ != Role::collects || message.ballot != ballot_) return;
  if (is_later(message.words, draft_)) draft_ = message.words;
  awaited_.erase(from);
  go_on();
}

void Agreement::handle(int from, const Ack& message) {
  if (role_ != Role::spreads || message.ballot != ballot_ || message.version != draft_.version) return;
  awaited_.erase(from);
  go_on();
}

void Agreement::handle(int, const Refuse& message) {
  if (role_ == Role::follows || role_ == Role::yields || message.promised <= ballot_) return;
  promised_ = std::max(promised_, message.promised);
  take_back();
  yields_to_ = holder(message.promised);
  role_ = Role::yields;
  if (lost_.contains(yields_to_)) collect();
  go_on();
}

// What this rank was about to change may be in the latest state or not: its askers are told the result of doing it
// again.
void Agreement::take_back() {
  for (auto item = under_way_.rbegin(); item != under_way_.rend(); ++item) queue_.push_front(item->first);
  under_way_.clear();
}

// Whatever can be done now.
void Agreement::go_on() {
  while (role_ != Role::follows && role_ != Role::yields && awaited_.empty()) {
    if (role_ == Role::spreads) {
      if (!is_later(words_, draft_)) words_ = draft_;
      for (const auto& [request, changed] : std::exchange(under_way_, {})) answer(request, changed);
      role_ = Role::leads;
    }
    if (role_ == Role::leads && queue_.empty() && !lost_.contains(holder(promised_))) return;
    if (promised_ != ballot_) {  // another has asked since, and was promised more
      collect();
      continue;
    }
    work_off_queue();
  }
}

void Agreement::work_off_queue() {
  bool changed_any = role_ == Role::collects;  // what was found must reach all, whether or not there is more to do
  for (const Request& request : std::exchange(queue_, {})) {
    const bool changed = apply(request.command);
    if (changed) ++draft_.version;
    changed_any = changed_any || changed;
    under_way_.emplace_back(request, changed);
  }
  if (changed_any) return spread();
  role_ = Role::spreads;  // to nobody: all have it already
}

void Agreement::spread() {
  role_ = Role::spreads;
  draft_.ballot = ballot_;
  awaited_ = living_peers();
  for (const int peer : awaited_) send(peer, Snapshot{.words = draft_});
}

bool Agreement::apply(const Command& command) {
  if (const auto* verdict = std::get_if<Verdict>(&command)) {
    if (draft_.verdict) return false;
    draft_.verdict = *verdict;
    return true;
  }
  const auto& change = std::get<ChangeSeat>(command);
  if (change.seat >= draft_.seats.size() || draft_.seats[change.seat] != change.expected) return false;
  draft_.seats[change.seat] = change.desired;
  return true;
}

void Agreement::answer(const Request& request, bool changed) {
  const Result result{.request = request.number, .changed = changed};
  if (request.asker == rank_) {
    handle(rank_, result);
  } else {
    send(request.asker, result);
  }
}

std::set<int> Agreement::living_peers() const {
  std::set<int> living;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && !lost_.contains(rank)) living.insert(rank);
  }
  return living;
}

void Agreement::send(int to, Message message) {
  if (!lost_.contains(to)) outgoing_.emplace_back(to, std::move(message));
}

}  // namespace lockstep::transport::tcp
