#include "launcher/run_options.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::launcher {
namespace {

using Words = std::vector<std::string>;

RunOptions parsed(const Words& arguments) { return std::get<RunOptions>(parse_run_options(arguments)); }

std::string complaint(const Words& arguments) {
  try {
    parse_run_options(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(RunOptions, every_spelling_of_the_number_of_processes) {
  for (const Words& words :
       {Words{"-np", "3"}, Words{"-np=3"}, Words{"-n", "3"}, Words{"-n3"}, Words{"--num-proc", "3"},
        Words{"--num_proc=3"}, Words{"--nproc-per-node", "3"}, Words{"--nproc_per_node=3"}}) {
    Words arguments = words;
    arguments.push_back("program");
    EXPECT_EQ(parsed(arguments).processes, 3) << words.front();
  }
}

TEST(RunOptions, everything_after_the_program_belongs_to_it) {
  const RunOptions options = parsed({"-np", "2", "train", "-np", "7", "--quiet", "--a_b=c_d", "--", "--help", "run"});
  EXPECT_EQ(options.command, (Words{"train", "-np", "7", "--quiet", "--a_b=c_d", "--", "--help", "run"}));
  EXPECT_EQ(options.processes, 2);
  EXPECT_FALSE(options.quiet);
}

TEST(RunOptions, two_dashes_end_the_options) {
  EXPECT_EQ(parsed({"-np", "2", "--", "-odd-name", "--", "x"}).command, (Words{"-odd-name", "--", "x"}));
}

TEST(RunOptions, a_module_takes_the_flags_that_follow_it) {
  const RunOptions options = parsed({"-np", "2", "-m", "package.train", "--lr", "0.1", "-m"});
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.command, (Words{"package.train", "--lr", "0.1", "-m"}));
}

TEST(RunOptions, the_other_options) {
  const RunOptions options =
      parsed({"--quiet", "--dry-run", "--output", "logs", "--shutdown-timeout", "0.5", "-np", "1", "x"});
  EXPECT_TRUE(options.quiet);
  EXPECT_TRUE(options.dry_run);
  EXPECT_EQ(options.output_directory, "logs");
  EXPECT_EQ(options.shutdown_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(parsed({"--no-preload", "-np", "2", "x"}).environment, (Words{"LOCKSTEP_PRELOAD=0"}));
}

TEST(RunOptions, words_of_other_launchers) {
  const RunOptions options =
      parsed({"-np", "2", "-prefix-timestamp", "--network-interfaces", "eth0,eth1", "--timeline-mark-cycles",
              "--no-stall-check", "-t", "3", "-r", "1", "--local-ranks-filter", "0", "--no-python", "x"});
  EXPECT_TRUE(options.timestamps);
  EXPECT_EQ(options.environment,
            (Words{"LOCKSTEP_TIMELINE_MARK_STEPS=1", "LOCKSTEP_STALL_WARNING=1000000000", "LOCKSTEP_INTERFACE=eth0"}));
  EXPECT_EQ(options.no_effect, (Words{"--tee", "--redirects", "--local-ranks-filter", "--no-python"}));
  EXPECT_EQ(parsed({"--nnodes", "2", "-H", "a:2,b:2", "x"}).processes, 4);
  EXPECT_EQ(parsed({"--nnodes=1:1", "--nproc-per-node=2", "x"}).processes, 2);
  EXPECT_NE(complaint({"--nnodes", "3", "-H", "a:2,b:2", "x"}).find("of which 2 are named"), std::string::npos);
  EXPECT_NE(complaint({"--nproc-per-node", "gpu", "x"}).find("Lockstep runs on CPUs"), std::string::npos);
  EXPECT_TRUE(std::get<HelpText>(parse_run_options({"-v"})).text.starts_with("lockstep "));
}

TEST(RunOptions, mistakes_are_named) {
  EXPECT_NE(complaint({"-np", "0", "x"}).find("-np 0"), std::string::npos);
  EXPECT_NE(complaint({"-np", "-1", "x"}).find("-1"), std::string::npos);
  EXPECT_NE(complaint({"-np", "two", "x"}).find("-np two"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2.5", "x"}).find("-np 2.5"), std::string::npos);
  EXPECT_NE(complaint({"-np", "99999999999", "x"}).find("99999999999"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2"}).find("program is missing"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2", "--"}).find("program is missing"), std::string::npos);
  EXPECT_NE(complaint({"x"}).find("-np N"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2", "--frobnicate", "x"}).find("--frobnicate"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2", "-z", "x"}).find("-z"), std::string::npos);
  EXPECT_NE(complaint({"-np", "2", "--shutdown-timeout", "-3", "x"}).find("shutdown-timeout"), std::string::npos);
  EXPECT_FALSE(complaint({"-np"}).empty());
  EXPECT_FALSE(complaint({}).empty());
}

TEST(RunOptions, help_is_help) {
  const auto help = parse_run_options({"--help"});
  ASSERT_TRUE(std::holds_alternative<HelpText>(help));
  EXPECT_NE(std::get<HelpText>(help).text.find("-np"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launcher
