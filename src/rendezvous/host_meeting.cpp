#include "rendezvous/host_meeting.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "net/call.hpp"
#include "net/frame.hpp"
#include "net/gate.hpp"

namespace lockstep::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum class MeetingKind : std::uint32_t { card = 1, table = 2, failure = 3, incompatible = 4 };

constexpr std::uint32_t kMostRanks = 1 << 16;
constexpr std::uint32_t kReasonBytes = 2048;
constexpr auto kGrace = std::chrono::seconds(3);
constexpr auto kLook = milliseconds(200);  // between two questions whether there is still hope
// Rank 0 answers within milliseconds once it is there. Then it is time to say who else may listen in its place.
constexpr auto kAnswer = std::chrono::seconds(3);
constexpr const char* kAnotherProgram =
    "If another program listens at that port, name a free one with LOCKSTEP_MEETING=host:port, for all ranks alike.";

std::optional<std::uint32_t> meeting_limit(std::uint32_t kind) {
  switch (static_cast<MeetingKind>(kind)) {
    case MeetingKind::card:
      return static_cast<std::uint32_t>(kCardBytes);
    case MeetingKind::table:
      return static_cast<std::uint32_t>(kCardBytes * kMostRanks);
    case MeetingKind::failure:
    case MeetingKind::incompatible:
      return kReasonBytes;
  }
  return std::nullopt;
}

// A connection of the meeting, as frames.
class Guest {
 public:
  Guest(std::unique_ptr<net::Stream> stream, std::uint32_t epoch)
      : stream_(std::move(stream)), epoch_(epoch), reader_(epoch, &meeting_limit) {}

  int fd() const { return stream_->fd(); }

  /// Throws net::ConnectionLost and net::BadFrame.
  std::optional<net::Frame> receive() {
    for (;;) {
      if (auto frame = reader_.take()) return frame;
      const std::size_t got = stream_->read_some(reader_.space());
      if (got == 0) return std::nullopt;
      reader_.filled(got);
    }
  }

  void send(MeetingKind kind, std::span<const std::byte> payload, Clock::time_point deadline) {
    net::write_whole(*stream_, net::make_frame(static_cast<std::uint32_t>(kind), epoch_, payload), deadline);
  }

 private:
  std::unique_ptr<net::Stream> stream_;
  std::uint32_t epoch_;
  net::FrameReader reader_;
};

class Host {
 public:
  Host(const HostMeetingOptions& options, const std::shared_ptr<net::Listener>& listener, const Card& own)
      : options_(options),
        deadline_(Clock::now() + options.timeout),
        gate_({.self = options.self}, {.listener = listener}) {
    cards_.emplace(0, own);
  }

  std::vector<Card> hold() {
    try {
      while (cards_.size() + misfits_.size() < options_.self.size) {
        if (refusal_ && Clock::now() >= told_until_) break;
        if (Clock::now() >= deadline_) throw Error(ErrorCode::unavailable, missing_text());
        if (options_.hopeless && options_.hopeless())
          throw Error(ErrorCode::unavailable, "a rank that was to come died while the others were waiting for it");
        step();
      }
      if (refusal_) throw net::Refused(*refusal_);
    } catch (const Error& error) {
      const bool fits = error.code() != ErrorCode::incompatible;
      tell_all(fits ? MeetingKind::failure : MeetingKind::incompatible,
               std::as_bytes(std::span(std::string_view(error.what()).substr(0, kReasonBytes))));
      throw;
    }
    std::vector<Card> table;
    for (const auto& [rank, card] : cards_) table.push_back(card);
    tell_all(MeetingKind::table, encode(table));
    return table;
  }

 private:
  void step() {
    std::vector<pollfd> waits{{.fd = gate_.fd(), .events = POLLIN, .revents = 0}};
    for (const auto& [rank, guest] : guests_) waits.push_back({.fd = guest.fd(), .events = POLLIN, .revents = 0});
    const auto until = std::min({deadline_, gate_.next_deadline(), Clock::now() + kLook});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    ::poll(waits.data(), waits.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    auto news = gate_.step();
    for (net::Arrival& arrival : news.arrivals) {
      if (arrival.identity.use != net::Use::control) continue;
      guests_.insert_or_assign(arrival.identity.from, Guest(std::move(arrival.stream), options_.self.epoch));
      cards_.erase(arrival.identity.from);
    }
    for (const net::TurnedAway& caller : news.turned_away) {
      // An engine that this process starts later may be awaited already; its caller tries again.
      if (caller.refusal.reason == net::Reason::epoch) continue;
      misfits_.insert(caller.identity.from);
      if (refusal_) continue;
      refusal_ = caller.refusal;
      told_until_ = Clock::now() + kGrace;
    }
    read_cards();
  }

  // One that hangs up may come back, or is reported as missing.
  void read_cards() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      try {
        if (const auto frame = guest->second.receive())
          cards_.insert_or_assign(guest->first, decode_card(frame->payload));
        ++guest;
      } catch (const Error&) {
        cards_.erase(guest->first);
        guest = guests_.erase(guest);
      }
    }
  }

  // All at once would be faster for thousands of ranks; a table is small.
  void tell_all(MeetingKind kind, std::span<const std::byte> payload) {
    const auto limit = Clock::now() + std::chrono::seconds(5);
    for (auto& [rank, guest] : guests_) {
      try {
        guest.send(kind, payload, limit);
      } catch (const Error&) {  // it is gone, which its connections will show
      }
    }
  }

  std::string missing_text() const {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t rank = 1; rank < options_.self.size; ++rank) {
      if (!cards_.contains(rank)) missing.push_back(rank);
    }
    return fmt::format(
        "{} of {} ranks arrived within {:.1f} s at {}; missing: {}. Likely cause: they have not reached the start of "
        "the engine (still importing, or ended early), cannot reach that address, or were started with another secret. "
        "Look at their output, or allow more time with LOCKSTEP_START_TIMEOUT.",
        cards_.size(), options_.self.size, static_cast<double>(options_.timeout.count()) / 1000, gate_.address().text(),
        fmt::join(missing, ", "));
  }

  const HostMeetingOptions& options_;
  const Clock::time_point deadline_;
  net::Gate gate_;
  std::map<std::uint32_t, Guest> guests_;  // by rank
  std::map<std::uint32_t, Card> cards_;
  // Somebody does not fit. The others are awaited for a moment all the same, so that they are told as well.
  std::set<std::uint32_t> misfits_;
  std::optional<net::Refusal> refusal_;
  Clock::time_point told_until_{};
};

void check_hope(const HostMeetingOptions& options) {
  if (options.hopeless && options.hopeless())
    throw Error(ErrorCode::unavailable, "a rank that was to come died while the others were waiting for it");
}

[[noreturn]] void refuse_listener(const net::Address& rank_0, const Error& error) {
  throw Error(ErrorCode::unavailable, fmt::format("whoever listens at {} is not rank 0 of this job: {} {}",
                                                  rank_0.text(), error.what(), kAnotherProgram));
}

// Rank 0 may not listen yet, or still hold an earlier meeting.
Guest call_rank_0(const HostMeetingOptions& options, const net::Address& rank_0, Clock::time_point deadline) {
  const net::TlsContext tls;
  std::string reason;
  bool warned = false;
  for (auto pause = milliseconds(1);; pause = std::min(pause * 2, milliseconds(50))) {
    try {
      const net::Call call{.rank = 0, .address = rank_0, .deadline = std::min(deadline, Clock::now() + kAnswer)};
      return Guest(net::call_control(tls, options.self, call).stream, options.self.epoch);
    } catch (const net::Refused& refused) {
      if (refused.reason() != net::Reason::epoch) throw;
      reason = refused.what();
    } catch (const net::HandshakeFailed& failure) {
      refuse_listener(rank_0, failure);
    } catch (const net::ConnectionLost& lost) {
      refuse_listener(rank_0, lost);
    } catch (const net::NobodyListens& nobody) {
      reason = nobody.what();
    } catch (const Error& error) {
      reason = error.what();
      if (!std::exchange(warned, true))
        log::warn(static_cast<int>(options.self.rank),
                  fmt::format("waiting for rank 0: {}. {}", reason, kAnotherProgram));
    }
    check_hope(options);
    if (Clock::now() + pause >= deadline) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank 0 did not arrive within {:.1f} s at {}: {}. Likely cause: it has not reached the "
                              "start of the engine (still importing, or ended early), or its host does not let this "
                              "one in. Look at its output, or allow more time with LOCKSTEP_START_TIMEOUT.",
                              static_cast<double>(options.timeout.count()) / 1000, rank_0.text(), reason));
    }
    std::this_thread::sleep_for(pause);
  }
}

std::vector<Card> await_table(Guest& rank_0, const HostMeetingOptions& options, Clock::time_point deadline) {
  for (;;) {
    if (const auto frame = rank_0.receive()) {
      if (frame->kind == static_cast<std::uint32_t>(MeetingKind::table))
        return decode_table(frame->payload, options.self.size);
      const auto* text = reinterpret_cast<const char*>(frame->payload.data());
      const bool fits = frame->kind != static_cast<std::uint32_t>(MeetingKind::incompatible);
      throw Error(fits ? ErrorCode::unavailable : ErrorCode::incompatible, std::string(text, frame->payload.size()));
    }
    check_hope(options);
    if (Clock::now() >= deadline) throw Error(ErrorCode::unavailable, "rank 0 stopped answering while starting");
    net::wait_for(rank_0.fd(), POLLIN, std::min(deadline, Clock::now() + kLook));
  }
}

}  // namespace

std::vector<Card> hold_meeting(const HostMeetingOptions& options, const std::shared_ptr<net::Listener>& listener,
                               const Card& own) {
  return Host(options, listener, own).hold();
}

std::vector<Card> attend_meeting(const HostMeetingOptions& options, const net::Address& rank_0, const Card& own) {
  const auto deadline = Clock::now() + options.timeout;
  Guest connection = call_rank_0(options, rank_0, deadline);
  try {
    connection.send(MeetingKind::card, encode(own), deadline);
    // Rank 0 gives up at its deadline and says why; the extra second lets its words arrive.
    return await_table(connection, options, deadline + std::chrono::seconds(1));
  } catch (const net::ConnectionLost&) {
    throw Error(ErrorCode::unavailable, "lost rank 0 while starting; look at its output for the cause");
  }
}

}  // namespace lockstep::rendezvous
