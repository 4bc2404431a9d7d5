#include "launcher/line_splitter.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep::launcher {
namespace {

using Lines = std::vector<std::pair<std::string, LineEnd>>;

Lines split(const std::string& text, std::size_t portion, std::size_t limit = 1024) {
  Lines lines;
  LineSplitter splitter(limit);
  const auto take = [&](std::string_view line, LineEnd end) { lines.emplace_back(line, end); };
  for (std::size_t at = 0; at < text.size(); at += portion) splitter.feed(text.substr(at, portion), take);
  splitter.finish(take);
  return lines;
}

TEST(LineSplitter, gives_the_same_lines_however_the_bytes_arrive) {
  const std::string text = "one\n\ntwo\r\n\r10%\r20%\r\rend\nrest";
  const Lines expected = {{"one", LineEnd::newline},         {"", LineEnd::newline},
                          {"two", LineEnd::newline},         {"", LineEnd::carriage_return},
                          {"10%", LineEnd::carriage_return}, {"20%", LineEnd::carriage_return},
                          {"", LineEnd::carriage_return},    {"end", LineEnd::newline},
                          {"rest", LineEnd::end_of_stream}};
  for (std::size_t portion = 1; portion <= text.size(); ++portion) EXPECT_EQ(split(text, portion), expected) << portion;
}

TEST(LineSplitter, cuts_a_line_that_exceeds_the_limit) {
  const Lines expected = {
      {"abcd", LineEnd::too_long}, {"efgh", LineEnd::too_long}, {"i", LineEnd::newline}, {"j", LineEnd::newline}};
  for (std::size_t portion = 1; portion <= 12; ++portion) EXPECT_EQ(split("abcdefghi\nj\n", portion, 4), expected);
}

TEST(LineSplitter, does_not_cut_a_line_as_long_as_the_limit) {
  EXPECT_EQ(split("abcd\nefgh\n", 10, 4), (Lines{{"abcd", LineEnd::newline}, {"efgh", LineEnd::newline}}));
}

TEST(LineSplitter, shows_the_unfinished_line_also_before_a_carriage_return_is_decided) {
  LineSplitter splitter;
  const auto ignore = [](std::string_view, LineEnd) {};
  splitter.feed("50%", ignore);
  EXPECT_EQ(splitter.unfinished(), "50%");
  splitter.feed("\r", ignore);
  EXPECT_EQ(splitter.unfinished(), "50%");
  splitter.feed("6", ignore);
  EXPECT_EQ(splitter.unfinished(), "6");
}

}  // namespace
}  // namespace lockstep::launcher
