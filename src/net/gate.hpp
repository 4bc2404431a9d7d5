// Where other ranks come in: the one port on which a rank listens, and those who have not yet proved that they belong
// to the job. Strangers cost a bounded number of descriptors, bytes and seconds, and one line of log a minute.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "net/knock.hpp"
#include "net/refusal_log.hpp"
#include "net/socket.hpp"

namespace lockstep::net {

struct GateOptions {
  Address address = Address::loopback();  ///< or one interface's; port 0: the system chooses
  std::size_t most_strangers = 64;        ///< beyond that the oldest is dropped, one that said nothing before others
  std::chrono::milliseconds patience{5'000};  ///< for the proof, from the first contact on
  std::shared_ptr<Listener> listener = {};    ///< in place of an address; open as long as the gate is there
};

/// One thread at a time. Of every rank that comes in with a control channel it remembers the key for the data
/// connections that follow, so that they may follow at once.
class Gate {
 public:
  Gate(House house, const GateOptions& options);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  const Address& address() const { return listener_->address(); }

  /// Becomes readable (poll) when `step` has something to do.
  int fd() const { return poll_.get(); }

  /// When `step` has something to do though nothing arrives.
  Clock::time_point next_deadline() const;

  struct News {
    std::vector<Arrival> arrivals;
    std::vector<TurnedAway> turned_away;
  };

  /// Goes on with everybody at the gate. Never waits.
  News step();

  std::size_t waiting() const { return knocks_.size(); }
  std::uint64_t strangers() const { return log_.total(); }

 private:
  using Knocks = std::map<std::uint64_t, std::unique_ptr<Knock>>;  // in the order in which they came

  void let_knock(News& news);
  void go_on(Knocks::iterator knock, News& news);
  void make_room();
  void refuse(Knocks::iterator knock, const std::string& why);
  void drop_late();
  void say(const std::optional<std::string>& line) const;
  void watch(int fd, std::uint64_t id, bool write, bool again) const;

  House house_;
  GateOptions options_;
  std::shared_ptr<Listener> listener_;
  Fd poll_;
  Knocks knocks_;
  std::uint64_t next_id_ = 1;                  // 0 is the listener
  std::map<std::uint32_t, Digest> data_keys_;  // by rank: of its last control channel
  RefusalLog log_;
};

}  // namespace lockstep::net
