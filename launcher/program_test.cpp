#include "launcher/program.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launcher/run_options.hpp"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "lockstep_program_test.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("python3", "#!/bin/sh\n", 0755);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  Program resolve(const Words& command, bool module = false) {
    return resolve_program(command, module, "/nonexistent:" + folder_.string());
  }
  std::string complaint(const Words& command) {
    try {
      resolve(command);
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  }

  fs::path folder_;
};

TEST_F(ProgramTest, is_found_in_the_search_path) {
  const std::string tool = write("tool", "#!/bin/sh\n", 0755);
  const Program program = resolve({"tool", "-x"});
  EXPECT_EQ(program.path, tool);
  EXPECT_EQ(program.arguments, (Words{"tool", "-x"}));
}

TEST_F(ProgramTest, a_python_file_is_run_with_python) {
  const std::string script = write("train.py", "print()", 0644);
  EXPECT_EQ(resolve({script, "a"}).path, (folder_ / "python3").string());
  EXPECT_EQ(resolve({script, "a"}).arguments, (Words{"python3", script, "a"}));
}

TEST_F(ProgramTest, the_execute_bit_alone_makes_no_script) {
  const std::string plain = write("plain.py", "print()", 0755);
  EXPECT_EQ(resolve({plain}).arguments, (Words{"python3", plain}));
  const std::string script = write("script.py", "#!/usr/bin/env python3\n", 0755);
  EXPECT_EQ(resolve({script}).path, script);
  EXPECT_EQ(resolve({script}).arguments, (Words{script}));
}

TEST_F(ProgramTest, a_module) {
  EXPECT_EQ(resolve({"package.train", "--lr", "1"}, true).arguments,
            (Words{"python3", "-m", "package.train", "--lr", "1"}));
}

TEST_F(ProgramTest, mistakes_are_named) {
  EXPECT_NE(complaint({"nothing-like-it"}).find("no such program in PATH"), std::string::npos);
  EXPECT_NE(complaint({"/nonexistent/x"}).find("no such file"), std::string::npos);
  EXPECT_NE(complaint({"missing.py"}).find("missing.py"), std::string::npos);
  EXPECT_NE(complaint({write("data", "x", 0644)}).find("chmod +x"), std::string::npos);
  EXPECT_NE(complaint({folder_.string()}).find("folder"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launcher
