// How ranks that share no memory agree on the few words that all of them must see alike: the verdict that ends the
// world, and the seats with which survivors find each other (engine/survivors.hpp).
//
// On one host these are words in shared memory, settled once by compare-and-swap. Between hosts some rank must put the
// changes in order, and that rank may die. So the words are one small state that every rank has a copy of, and a rank
// that *leads* changes it, a command at a time:
//
//     asker   -> leader   Propose    do this
//     leader  -> all      Snapshot   the whole state, changed, under the leader's ballot
//     all     -> leader   Ack        I have it
//     leader  -> asker    Result     done (or: the word was another), after all those that live have it
//
// Everybody asks the lowest rank that it does not know to be lost. Who is asked and does not lead begins to: it takes a
// ballot above all it has seen and collects the states of all others. The one with the highest ballot, and among those
// the highest version, is the latest, and goes on from there. To have told a state under a ballot is a promise: a
// leader with a lower ballot is answered with Refuse. It lets the other finish, and collects again. So two that both
// lead, because ranks disagree about who is dead, take turns and never contradict each other, as long as one living
// rank hears both. The first state that a leader spreads has all that it was asked for until then, so every turn
// counts.
//
// When a leader is lost, the lowest rank that is left leads once, asked or not, because some may have heard of the last
// change and others not. A result is given when every living rank has the state behind it. So whatever a rank has been
// told survives, as long as anybody does: the next leader asks all that live. A change that nobody was told of may be
// lost with its leader; the asker asks the next one again, and is at worst told "false" for a change that was its own.
//
// Without a fixed quorum this holds among ranks that reach each other. Two halves of a parted network each come to
// their own end, with the other half as the lost one.
//
// This class is the rules alone: messages in, messages out, no clock, no thread, no socket. Messages of one rank to
// another must stay in order; they may be cut off by a loss and never skip one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "transport/transport.hpp"

namespace lockstep::transport::tcp {

struct SharedWords {
  std::uint64_t ballot = 0;   ///< of the leader that made this version
  std::uint64_t version = 0;  ///< how many changes there have been
  std::optional<Verdict> verdict = {};
  std::vector<std::uint64_t> seats = {};  ///< by rank
};

struct ChangeSeat {
  std::uint32_t seat = 0;
  std::uint64_t expected = 0;
  std::uint64_t desired = 0;
};

using Command = std::variant<Verdict, ChangeSeat>;

struct Propose {
  std::uint64_t request = 0;
  Command command;
};
struct Result {
  std::uint64_t request = 0;
  bool changed = false;
};
struct Ask {
  std::uint64_t ballot = 0;
};
struct Tell {
  std::uint64_t ballot = 0;  ///< the one that is promised
  SharedWords words;
};
struct Snapshot {
  SharedWords words;
};
struct Ack {
  std::uint64_t ballot = 0;
  std::uint64_t version = 0;
};
struct Refuse {
  std::uint64_t promised = 0;  ///< a higher ballot
};

using Message = std::variant<Propose, Result, Ask, Tell, Snapshot, Ack, Refuse>;

class Agreement {
 public:
  Agreement(int rank, int size);

  /// Asks for a change. The answer comes as `result`, some messages later.
  std::uint64_t propose(const Command& command);

  /// Takes the answer, once it is there.
  std::optional<bool> result(std::uint64_t request);

  /// What all others see as well, or will.
  const SharedWords& words() const { return words_; }

  /// A peer is dead, or has left: nothing is expected of it any more.
  void lose(int peer);

  void deliver(int from, const Message& message);

  /// What is to be sent, in order.
  std::vector<std::pair<int, Message>> take_outgoing() { return std::exchange(outgoing_, {}); }

 private:
  enum class Role { follows, collects, spreads, leads, yields };

  struct Request {
    int asker = 0;
    std::uint64_t number = 0;
    Command command;
  };

  void handle(int from, const Propose& message);
  void handle(int from, const Result& message);
  void handle(int from, const Ask& message);
  void handle(int from, const Tell& message);
  void handle(int from, const Snapshot& message);
  void handle(int from, const Ack& message);
  void handle(int from, const Refuse& message);

  int holder(std::uint64_t ballot) const;
  int adviser() const;  ///< whom this rank asks
  void ask_adviser(std::uint64_t request, const Command& command);
  void accept(const Request& request);
  void collect();
  void go_on();
  void work_off_queue();
  void spread();
  void take_back();
  bool apply(const Command& command);
  void answer(const Request& request, bool changed);
  std::set<int> living_peers() const;
  void send(int to, Message message);

  const int rank_;
  const int size_;
  SharedWords words_;
  std::uint64_t promised_ = 0;
  std::set<int> lost_;
  std::map<std::uint64_t, Command> open_;  ///< this rank's own requests without an answer
  std::map<std::uint64_t, bool> results_;
  std::uint64_t requests_ = 0;
  std::vector<std::pair<int, Message>> outgoing_;

  // Of a leader.
  Role role_ = Role::follows;
  std::uint64_t ballot_ = 0;
  SharedWords draft_;  ///< the latest that has been told, then with changes: nobody's words until all have it
  std::set<int> awaited_;
  std::deque<Request> queue_;
  std::vector<std::pair<Request, bool>> under_way_;  ///< what is spread, with the results
  int yields_to_ = 0;
};

}  // namespace lockstep::transport::tcp
