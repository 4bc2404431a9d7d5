#include "engine/patience.hpp"

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// Without anything to stay awake for, it sleeps after fewer turns than that.
constexpr int kTurns = 100;

bool stays_awake(Patience& patience) {
  for (int turn = 0; turn < kTurns; ++turn) {
    if (!patience.wait_awake()) return false;
  }
  return true;
}

TEST(Patience, EndsAfterAFewTurns) {
  Patience patience(/*crowded=*/true);
  EXPECT_FALSE(stays_awake(patience));
}

TEST(Patience, LastsAsLongAsAnAnswerMayTakeAndAnewAfterEachOne) {
  Patience patience(/*crowded=*/true);
  patience.stay_awake_for(hours(1));
  EXPECT_TRUE(stays_awake(patience));
  patience.reset();
  EXPECT_TRUE(stays_awake(patience));
}

TEST(Patience, LastsForTheRestOfWhatHasBegunToArriveOnce) {
  Patience patience(/*crowded=*/true);
  const auto until = std::chrono::steady_clock::now() + milliseconds(1);
  patience.stay_awake_for_rest(milliseconds(1));
  while (std::chrono::steady_clock::now() <= until) patience.wait_awake();
  while (patience.wait_awake()) {
  }
  patience.reset();  // something else has come
  patience.stay_awake_for_rest(hours(1));
  EXPECT_FALSE(stays_awake(patience));

  Patience other(/*crowded=*/true);
  other.stay_awake_for_rest(hours(1));
  EXPECT_TRUE(stays_awake(other));
  other.reset();
  EXPECT_TRUE(stays_awake(other));
}

}  // namespace
}  // namespace lockstep::engine
