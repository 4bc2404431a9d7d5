#include "launcher/screen.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "launcher/rank_output.hpp"

namespace lockstep::launcher {
namespace {

class ScreenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    ::fcntl(read_.get(), F_SETFL, O_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);
  }

  std::string shown() {
    std::string text(1 << 20, '\0');
    const ssize_t count = ::read(read_.get(), text.data(), text.size());
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }

  UniqueFd read_;
  UniqueFd write_;
};

TEST_F(ScreenTest, a_full_pipe_keeps_lines_pending_and_loses_none) {
  Screen screen(write_.get(), ScreenKind::plain, false);
  const std::string text(999, 'x');
  for (int i = 0; i < 200; ++i) screen.line({}, text);
  screen.write_some();
  EXPECT_GT(screen.pending(), 0u);
  std::size_t received = 0;
  while (screen.pending() > 0 || received < 200000) {
    received += shown().size();
    screen.write_some();
    ASSERT_LE(received, 200000u);
  }
  EXPECT_EQ(received, 200000u);
}

TEST_F(ScreenTest, a_reader_that_went_away_is_noticed) {
  Screen screen(write_.get(), ScreenKind::plain, false);
  read_.reset();
  screen.line({}, "text");
  screen.write_some();
  EXPECT_EQ(screen.error(), EPIPE);
  EXPECT_EQ(screen.pending(), 0u);
}

TEST_F(ScreenTest, a_progress_bar_stays_below_the_lines_of_others) {
  Screen screen(write_.get(), ScreenKind::terminal, false);
  RankOutput bar(0, "stdout", screen, nullptr, nullptr);
  RankOutput other(1, "stdout", screen, nullptr, nullptr);
  bar.feed("\r 10%");
  other.feed("hello\n");
  bar.feed("\r 20%");
  bar.feed("\r100%\n");
  screen.write_some();
  EXPECT_EQ(shown(),
            "\r\x1b[K[0]  10%"
            "\r\x1b[K[1] hello\n[0]  10%"
            "\r\x1b[K[0]  20%"
            "\r\x1b[K[0] 100%\n");
}

TEST_F(ScreenTest, a_bar_on_stderr_survives_lines_on_stdout) {
  Screen screen(write_.get(), ScreenKind::terminal, false);
  RankOutput bar(0, "stdout", screen, nullptr, nullptr);
  RankOutput text(0, "stdout", screen, nullptr, nullptr);
  bar.feed("\r 10%");
  text.feed("loss 1\n");
  screen.write_some();
  EXPECT_EQ(shown(), "\r\x1b[K[0]  10%\r\x1b[K[0] loss 1\n[0]  10%");
}

TEST_F(ScreenTest, on_a_terminal_only_the_last_state_of_another_ranks_bar_is_shown) {
  Screen screen(write_.get(), ScreenKind::terminal, false);
  RankOutput bar(1, "stdout", screen, nullptr, nullptr);
  bar.feed("\r 10%\r 20%\r100%\n");
  screen.write_some();
  EXPECT_EQ(shown(), "[1] 100%\n");
}

TEST_F(ScreenTest, in_a_pipe_each_state_of_a_bar_is_a_line) {
  Screen screen(write_.get(), ScreenKind::plain, false);
  RankOutput bar(0, "stdout", screen, nullptr, nullptr);
  bar.feed("\r 10%\r 20%\r100%\nno end");
  bar.finish();
  screen.write_some();
  EXPECT_EQ(shown(), "[0]  10%\n[0]  20%\n[0] 100%\n[0] no end\n");
}

TEST_F(ScreenTest, the_rank_is_coloured_and_the_text_is_not) {
  Screen screen(write_.get(), ScreenKind::terminal, true);
  RankOutput output(1, "stdout", screen, nullptr, nullptr);
  output.feed("text\n");
  screen.write_some();
  EXPECT_EQ(shown(), "\x1b[33m[1]\x1b[0m text\n");
}

TEST_F(ScreenTest, lines_carry_the_time_on_request) {
  Screen screen(write_.get(), ScreenKind::plain, false);
  screen.show_timestamps(true);
  RankOutput output(1, "stdout", screen, nullptr, nullptr);
  output.feed("text\n");
  screen.write_some();
  const std::string line = shown();
  EXPECT_EQ(line.substr(line.find('[')), "[1] text\n");
  EXPECT_EQ(line.find('['), std::string("2026-11-18 09:30:00.125 ").size()) << line;
}

TEST(Fit, counts_characters_not_bytes) {
  EXPECT_EQ(fit("abc", 2), "ab");
  EXPECT_EQ(fit("abc", 3), "abc");
  EXPECT_EQ(fit("██░", 2), "██");
  EXPECT_EQ(fit("\x1b[32m[0]\x1b[0m abc", 5), "\x1b[32m[0]\x1b[0m a");
}

}  // namespace
}  // namespace lockstep::launcher
