// A rank that listens, for tests: its gate with a thread that looks after it, and members who may call it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/sanitizer_test.hpp"
#include "net/call.hpp"
#include "net/gate.hpp"

namespace lockstep::net {

inline Clock::time_point in(std::chrono::milliseconds time) { return Clock::now() + time; }

/// For what must happen: long, because the machine may be busy.
inline Clock::time_point soon() { return in(std::chrono::seconds(30)); }

class GateKeeper {
 public:
  explicit GateKeeper(GateOptions options = {}, bool encrypt_data = false)
      : gate_({.self = member(0), .encrypt_data = encrypt_data}, options), thread_([this] { watch(); }) {}

  ~GateKeeper() {
    ending_ = true;
    thread_.join();
  }

  static Membership member(std::uint32_t rank) {
    return {.secret = std::string(32, 's'), .job = job_tag("j"), .epoch = 3, .rank = rank, .size = 4, .release = "1.0"};
  }

  Address address() const { return gate_.address(); }
  Call call(Clock::time_point deadline = soon()) const {
    return {.rank = 0, .address = address(), .deadline = deadline};
  }

  /// Waits for the next that comes in.
  Arrival arrival() {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return !arrivals_.empty(); });
    Arrival first = std::move(arrivals_.front());
    arrivals_.erase(arrivals_.begin());
    return first;
  }

  TurnedAway turned_away() {
    std::unique_lock lock(mutex_);
    wait(lock, [this] { return !turned_away_.empty(); });
    TurnedAway first = std::move(turned_away_.front());
    turned_away_.erase(turned_away_.begin());
    return first;
  }

  void await_strangers(std::uint64_t count) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return strangers_ >= count; });
  }

  std::uint64_t strangers() {
    std::lock_guard lock(mutex_);
    return strangers_;
  }

  std::size_t most_waiting() {
    std::lock_guard lock(mutex_);
    return most_waiting_;
  }

  std::size_t arrived() {
    std::lock_guard lock(mutex_);
    return arrivals_.size();
  }

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    // By the system clock, because the thread sanitizer of gcc 12 does not know the call behind the steady one.
    const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(30);
    if (!changed_.wait_until(lock, limit, condition)) throw std::runtime_error("the gate did not do it in time");
  }

  void watch() {
    while (!ending_) {
      pollfd poll{.fd = gate_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&poll, 1, 5);
      auto news = gate_.step();
      std::lock_guard lock(mutex_);
      for (auto& arrival : news.arrivals) arrivals_.push_back(std::move(arrival));
      for (auto& one : news.turned_away) turned_away_.push_back(std::move(one));
      strangers_ = gate_.strangers();
      most_waiting_ = std::max(most_waiting_, gate_.waiting());
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Arrival> arrivals_;
  std::vector<TurnedAway> turned_away_;
  std::uint64_t strangers_ = 0;
  std::size_t most_waiting_ = 0;
  std::atomic<bool> ending_ = false;
  Gate gate_;
  std::thread thread_;
};

/// True when bytes pass in both directions.
inline bool converse(Stream& one, Stream& other, std::size_t size = 100) {
  std::vector<std::byte> question(size), heard(size);
  for (std::size_t i = 0; i < size; ++i) question[i] = static_cast<std::byte>(i * 7);
  for (auto [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    std::thread writer([&, from = from] { write_whole(*from, question, soon()); });
    std::ranges::fill(heard, std::byte{});
    read_whole(*to, heard, soon());
    writer.join();
    if (heard != question) return false;
  }
  return true;
}

}  // namespace lockstep::net
