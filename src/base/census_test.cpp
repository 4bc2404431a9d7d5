#include "base/census.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/fd.hpp"
#include "base/futex.hpp"
#include "base/sanitizer_test.hpp"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 20s;  // until a state that must come has come

// The thread sanitizer has a thread of its own, which rests when it likes.
bool can_rest() { return !under_thread_sanitizer(); }

std::optional<std::uint64_t> look() {
  const pid_t self[] = {gettid()};
  return threads_at_rest(self);
}

// Looks until they rest, and tells what was seen; nullopt when they never do.
std::optional<std::uint64_t> look_until_at_rest() {
  for (const auto end = std::chrono::steady_clock::now() + kLong; std::chrono::steady_clock::now() < end;) {
    if (const auto seen = look()) return seen;
    std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

class Sleeper {
 public:
  void sleep() {
    std::unique_lock lock(mutex_);
    while (!woken_) changed_.wait(lock);
    woken_ = false;
  }
  void wake() {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

TEST(Census, ThreadsThatOnlyTheProcessCanWakeAreAtRest) {
  if (!can_rest()) return;
  Sleeper sleeper;
  std::thread waiting([&] {
    sleeper.sleep();
    sleeper.sleep();
  });
  std::thread joining([&] { waiting.join(); });
  const auto first = look_until_at_rest();
  ASSERT_TRUE(first);
  EXPECT_EQ(look(), first);
  sleeper.wake();  // it runs, and goes to sleep again
  auto second = look_until_at_rest();
  while (second == first) second = look_until_at_rest();  // not woken yet
  EXPECT_TRUE(second);
  sleeper.wake();
  joining.join();
}

void expect_never_at_rest(
    const std::function<void(const std::atomic<bool>& end)>& body, const std::function<void()>& wake = [] {}) {
  std::atomic<bool> begun{false}, end{false};
  std::thread thread([&] {
    begun = true;
    body(end);
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(look());
    std::this_thread::yield();
  }
  end = true;
  wake();
  thread.join();
}

TEST(Census, AThreadThatRunsOrSleepsForATimeIsNot) {
  expect_never_at_rest([](const std::atomic<bool>& end) {
    while (!end) std::this_thread::yield();
  });
  expect_never_at_rest([](const std::atomic<bool>& end) {
    while (!end) std::this_thread::sleep_for(5ms);
  });
}

TEST(Census, AThreadThatWaitsForTheOutsideIsNot) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]);
  const auto write_one = [&] { ASSERT_EQ(::write(in.get(), "x", 1), 1); };
  expect_never_at_rest(
      [&](const std::atomic<bool>&) {
        char byte = 0;
        ASSERT_EQ(::read(out.get(), &byte, 1), 1);
      },
      write_one);

  // Another process might map this word, and wake who sleeps on it.
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& word = *new (page) std::atomic<std::uint32_t>(0);
  expect_never_at_rest(
      [&](const std::atomic<bool>&) {
        while (word == 0)
          syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, 0, nullptr, nullptr, 0);
      },
      [&] {
        word = 1;
        futex_wake_all(word);
      });
  ::munmap(page, 4096);
}

TEST(Census, AnAlarmMayChangeAnything) {
  itimerval alarm{.it_interval = {}, .it_value = {.tv_sec = 1000, .tv_usec = 0}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &alarm, nullptr), 0);
  EXPECT_FALSE(look());
  alarm.it_value.tv_sec = 0;
  ASSERT_EQ(::setitimer(ITIMER_REAL, &alarm, nullptr), 0);
  EXPECT_TRUE(look() || !can_rest());
}

TEST(Census, AThreadOfALibraryCanBeLeftOut) {
  std::atomic<pid_t> id{0};
  std::atomic<bool> over{false};
  std::thread busy([&] {
    id = gettid();
    while (!over) std::this_thread::sleep_for(1ms);
  });
  while (id == 0) std::this_thread::yield();
  EXPECT_EQ(look(), std::nullopt);
  leave_out_of_census(id);
  EXPECT_TRUE(!can_rest() || look_until_at_rest());
  over = true;
  busy.join();
}

}  // namespace
}  // namespace lockstep
