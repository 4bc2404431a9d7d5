#include "launcher/config_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <variant>

#include "launcher/run_options.hpp"

namespace lockstep::launcher {
namespace {

/// A file that is gone with the test.
class ConfigFileTest : public testing::Test {
 protected:
  ~ConfigFileTest() override { std::remove(path_.c_str()); }

  RunOptions run(const std::string& text, std::vector<std::string> arguments) {
    std::ofstream(path_) << text;
    arguments.insert(arguments.begin(), "--config-file=" + path_);
    return std::get<RunOptions>(parse_run_options(arguments));
  }

  std::string complaint(const std::string& text) {
    try {
      run(text, {"-np", "1", "x"});
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  }

  const std::string path_ = testing::TempDir() + "lockstep-config-" + std::to_string(::getpid()) + ".toml";
};

TEST_F(ConfigFileTest, options_and_settings) {
  const RunOptions options =
      run("num-proc = 3\n"
          "quiet = true\n"
          "json = false\n"
          "max_restarts = 2      # with torchrun's underscore\n"
          "shutdown-timeout = 0.5\n"
          "output = 'logs'\n"
          "bind = 'none'\n"
          "timeline-filename = \"trace.json\"\n"
          "[environment]\n"
          "LOCKSTEP_LOG = 'info'\n"
          "THREADS = 4\n",
          {"-x", "THREADS=5", "train.py", "--config-file", "mine"});
  EXPECT_EQ(options.processes, 3);
  EXPECT_TRUE(options.quiet);
  EXPECT_FALSE(options.json);
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_EQ(options.shutdown_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(options.output_directory, "logs");
  EXPECT_EQ(options.binding, Binding::none);
  EXPECT_EQ(options.environment,
            (std::vector<std::string>{"LOCKSTEP_LOG=info", "THREADS=4", "THREADS=5", "LOCKSTEP_TIMELINE=trace.json"}));
  EXPECT_EQ(options.command, (std::vector<std::string>{"train.py", "--config-file", "mine"}));
}

TEST_F(ConfigFileTest, the_command_line_counts_more) {
  EXPECT_EQ(run("num-proc = 3\n", {"-np", "2", "x"}).processes, 2);
  EXPECT_EQ(run("output = 'a'\n", {"-np", "2", "--log-dir", "b", "x"}).output_directory, "b");
}

TEST_F(ConfigFileTest, mistakes_are_named_with_their_line) {
  EXPECT_NE(complaint("quiet = true\nnum-prok = 3\n").find(path_ + ":2: there is no option num-prok"),
            std::string::npos);
  EXPECT_NE(complaint("quiet = \n").find(path_ + ":1: not TOML"), std::string::npos);
  EXPECT_NE(complaint("[run]\nquiet = true\n").find("there is no table [run]"), std::string::npos);
  EXPECT_NE(complaint("output = [1, 2]\n").find("output must be a text"), std::string::npos);
  EXPECT_NE(complaint("\nmax-restarts = -3\n").find(path_ + ":2: "), std::string::npos);
  EXPECT_NE(complaint("min-np = 2\n").find("--min-np"), std::string::npos);
  EXPECT_NE(complaint("config-file = 'x'\n").find("there is no option config-file"), std::string::npos);
}

TEST(ConfigFile, one_that_is_not_there) {
  EXPECT_THROW(read_config_file("/no/such/file.toml"), UsageError);
  EXPECT_THROW(read_config_file("/"), UsageError);
}

}  // namespace
}  // namespace lockstep::launcher
