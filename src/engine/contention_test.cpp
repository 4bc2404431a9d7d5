#include "engine/contention.hpp"

#include <gtest/gtest.h>

#include "engine/patience.hpp"

namespace lockstep::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

int calm_waits(Contention& contention, int waits) {
  int calm = 0;
  for (int i = 0; i < waits; ++i) calm += contention.is_wanted_by_others() ? 1 : 0;
  return calm;
}

TEST(Contention, AThreadThatRunsAllTheTimeIsInNobodysWay) {
  Contention contention;
  for (int i = 0; i < 100; ++i) contention.note(milliseconds(1), milliseconds(1));
  EXPECT_EQ(calm_waits(contention, 100), 0);
}

TEST(Contention, OneLongInterruptionAloneProvesNothing) {
  Contention contention;
  for (int i = 0; i < 10; ++i) contention.note(milliseconds(1), milliseconds(1));
  contention.note(milliseconds(4), microseconds(100));
  EXPECT_EQ(calm_waits(contention, 100), 0);
}

TEST(Contention, WhereOthersTakeTheCoreThreadsSleepAndNowAndThenTryAgain) {
  Contention contention;
  for (int i = 0; i < 20; ++i) contention.note(milliseconds(1), microseconds(300));
  const int calm = calm_waits(contention, 1000);
  EXPECT_GT(calm, 900);
  EXPECT_LT(calm, 1000);
}

TEST(Contention, ItsEndIsNoticed) {
  Contention contention;
  for (int i = 0; i < 20; ++i) contention.note(milliseconds(1), microseconds(100));
  int waits = 0;
  while (waits < 1'000'000) {
    ++waits;
    if (!contention.is_wanted_by_others()) contention.note(milliseconds(1), milliseconds(1));
    if (waits % 64 == 0 && calm_waits(contention, 2) == 0) break;
  }
  EXPECT_LT(waits, 2000);
}

TEST(Contention, AWaitIsMeasuredOnlyWhenItIsNotAShortOne) {
  Patience brief(/*crowded=*/false);
  brief.measure();
  brief.wait_awake();
  EXPECT_FALSE(brief.take_measured());

  Patience patience(/*crowded=*/false);
  patience.measure();
  const auto until = std::chrono::steady_clock::now() + milliseconds(5);
  patience.stay_awake_for(milliseconds(5));
  while (std::chrono::steady_clock::now() < until) patience.wait_awake();
  const auto awake = patience.take_measured();
  ASSERT_TRUE(awake);
  EXPECT_GT(awake->time(), milliseconds(1));
  EXPECT_GT(awake->time_on_core(), microseconds(0));  // by another clock, which may run a little ahead
  EXPECT_FALSE(patience.take_measured());
}

}  // namespace
}  // namespace lockstep::engine
