// The rules of agreement under random schedules: messages are late, ranks die with some of their messages on the way,
// and others learn of it at different times.
#include "transport/tcp/agreement.hpp"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::transport::tcp {
namespace {

class AgreeingRanks {
 public:
  AgreeingRanks(int size, std::uint32_t seed) : random_(seed), dead_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Agreement& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool is_dead(int rank) const { return dead_[static_cast<std::size_t>(rank)]; }
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }

  /// What it had sent arrives in part: a prefix on each of its connections.
  void kill(int rank) {
    collect();
    dead_[static_cast<std::size_t>(rank)] = true;
    for (auto& [way, messages] : wires_) {
      if (way.first == rank) messages.resize(static_cast<std::size_t>(below(static_cast<int>(messages.size()) + 1)));
      if (way.second == rank) messages.clear();
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (!is_dead(peer)) unaware_.insert({peer, rank});
    }
  }

  /// One rank declares another lost that lives: from then on they do not hear each other.
  void cut(int one, int other) {
    collect();
    for (const auto& way : {std::pair(one, other), std::pair(other, one)}) {
      wires_[way].clear();
      unaware_.insert(way);
    }
    cuts_.insert({one, other});
    cuts_.insert({other, one});
  }

  /// One message is delivered, or one loss noticed. False when there is none.
  bool step() {
    collect();
    std::vector<std::pair<int, int>> busy;
    for (const auto& [way, messages] : wires_) {
      if (!messages.empty()) busy.push_back(way);
    }
    // The loss of a peer is noticed after what it had sent.
    for (const auto& [peer, rank] : unaware_) {
      if (wires_[{rank, peer}].empty() && !is_dead(peer)) busy.emplace_back(peer, -1 - rank);
    }
    if (busy.empty()) return false;
    const auto [from, to] = busy[static_cast<std::size_t>(below(static_cast<int>(busy.size())))];
    if (to < 0) {
      unaware_.erase({from, -1 - to});
      at(from).lose(-1 - to);
    } else {
      auto& messages = wires_[{from, to}];
      const Message message = messages.front();
      messages.pop_front();
      at(to).deliver(from, message);
    }
    return true;
  }

 private:
  void collect() {
    for (int rank = 0; rank < size(); ++rank) {
      for (auto& [to, message] : at(rank).take_outgoing()) {
        if (!is_dead(rank) && !is_dead(to) && !cuts_.contains({rank, to})) wires_[{rank, to}].push_back(message);
      }
    }
  }

  std::mt19937 random_;
  std::vector<Agreement> ranks_;
  std::vector<bool> dead_;
  std::map<std::pair<int, int>, std::deque<Message>> wires_;
  std::set<std::pair<int, int>> unaware_;
  std::set<std::pair<int, int>> cuts_;
};

Verdict verdict_of(int rank) { return {.code = ErrorCode::aborted, .rank = rank, .text = std::to_string(rank)}; }

TEST(TcpAgreement, OneRankAlone) {
  Agreement alone(0, 1);
  EXPECT_EQ(alone.result(alone.propose(verdict_of(0))), true);
  EXPECT_EQ(alone.result(alone.propose(verdict_of(0))), false);
  EXPECT_EQ(alone.words().verdict->rank, 0);
  EXPECT_EQ(alone.result(alone.propose(ChangeSeat{.seat = 0, .expected = 0, .desired = 5})), true);
  EXPECT_EQ(alone.words().seats[0], 5u);
  EXPECT_EQ(alone.result(alone.propose(ChangeSeat{.seat = 7, .expected = 0, .desired = 5})), false);
}

// Every rank pronounces and raises every seat from 0 to its own number plus one, while up to all but one die.
void run_schedule(int size, std::uint32_t seed, bool with_cut) {
  SCOPED_TRACE(testing::Message() << size << " ranks, seed " << seed);
  AgreeingRanks world(size, seed);
  struct Asked {
    int rank;
    std::uint64_t request;
    int seat;  // -1: the verdict
    std::optional<bool> result;
  };
  std::vector<Asked> asked;
  std::vector<std::optional<int>> seen(static_cast<std::size_t>(size));  // the verdict that a rank saw first
  int deaths = with_cut ? 0 : world.below(size);                         // the third must live
  int to_ask = 2 * size;
  if (with_cut) world.cut(0, 1);
  for (int round = 0; round < 100'000; ++round) {
    const int rank = world.below(size);
    if (to_ask > 0 && world.below(4) == 0 && !world.is_dead(rank)) {
      --to_ask;
      const int seat = world.below(3) == 0 ? -1 : world.below(size);
      const Command command = seat < 0 ? Command(verdict_of(rank))
                                       : ChangeSeat{.seat = static_cast<std::uint32_t>(seat),
                                                    .expected = 0,
                                                    .desired = static_cast<std::uint64_t>(rank) + 1};
      asked.push_back({.rank = rank, .request = world.at(rank).propose(command), .seat = seat, .result = {}});
    }
    if (deaths > 0 && world.below(30) == 0 && !world.is_dead(rank)) {
      --deaths;
      world.kill(rank);
    }
    const bool moved = world.step();
    for (Asked& one : asked) {
      if (!one.result && !world.is_dead(one.rank)) one.result = world.at(one.rank).result(one.request);
    }
    for (int i = 0; i < size; ++i) {
      const auto& verdict = world.at(i).words().verdict;
      auto& first = seen[static_cast<std::size_t>(i)];
      if (!verdict || world.is_dead(i)) continue;
      if (!first) first = verdict->rank;
      ASSERT_EQ(*first, verdict->rank) << "rank " << i << " saw two verdicts";
    }
    if (!moved && to_ask == 0) break;
  }
  // Those who do not hear each other learn what the other did when they next ask, as they do about a peer that they
  // lost.
  for (int rank = 0; with_cut && rank < size; ++rank) {
    world.at(rank).propose(verdict_of(rank));
    while (world.step()) {
    }
  }
  std::optional<SharedWords> final;
  std::map<int, int> winners;
  for (const Asked& one : asked) {
    if (world.is_dead(one.rank)) continue;
    ASSERT_TRUE(one.result) << "rank " << one.rank << " got no answer";
    if (*one.result) ++winners[one.seat];
    EXPECT_LE(winners[one.seat], 1) << "two changed seat " << one.seat;
    const SharedWords& words = world.at(one.rank).words();
    if (one.seat < 0) {
      ASSERT_TRUE(words.verdict);
      EXPECT_TRUE(!*one.result || words.verdict->rank == one.rank);
    } else {
      const std::uint64_t seat = words.seats[static_cast<std::size_t>(one.seat)];
      EXPECT_NE(seat, 0u);
      EXPECT_TRUE(!*one.result || seat == static_cast<std::uint64_t>(one.rank) + 1);
    }
  }
  for (int i = 0; i < size; ++i) {
    if (world.is_dead(i)) continue;
    const SharedWords& words = world.at(i).words();
    if (!final) final = words;
    EXPECT_EQ(words.verdict ? words.verdict->rank : -1, final->verdict ? final->verdict->rank : -1);
    for (std::size_t seat = 0; seat < words.seats.size(); ++seat) {
      // Without a cut all have the same; with one, some may not have heard of the last changes, but never of others.
      const bool unheard = with_cut && (words.seats[seat] == 0 || final->seats[seat] == 0);
      EXPECT_TRUE(unheard || words.seats[seat] == final->seats[seat]) << "seat " << seat;
    }
  }
}

TEST(TcpAgreement, WhoeverDiesAndWheneverItIsNoticed) {
  for (std::uint32_t seed = 0; seed < 2000 && !testing::Test::HasFailure(); ++seed)
    run_schedule(1 + static_cast<int>(seed % 5), seed, false);
}

TEST(TcpAgreement, TwoThatDoNotHearEachOtherAndAThirdThatHearsBoth) {
  for (std::uint32_t seed = 0; seed < 1000 && !testing::Test::HasFailure(); ++seed)
    run_schedule(3 + static_cast<int>(seed % 3), seed, true);
}

}  // namespace
}  // namespace lockstep::transport::tcp
