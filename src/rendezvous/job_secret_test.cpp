#include "rendezvous/job_secret.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/error.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/pmix.hpp"

namespace lockstep::rendezvous {
namespace {

using std::chrono::milliseconds;

class SecretFile {
 public:
  SecretFile(const std::string& content, mode_t mode) {
    std::ofstream(path_) << content;
    ::chmod(path_.c_str(), mode);
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "lockstep-secret-test-" + std::to_string(getpid());
};

std::string refusal_of(const std::string& path) {
  try {
    secret_from_file(path, "job");
  } catch (const Error& error) {
    return error.what();
  }
  return "taken";
}

TEST(JobSecret, FileMustBeOursAlone) {
  const std::string content(32, 'x');
  for (mode_t mode : {0640, 0604, 0660, 0644}) {
    const SecretFile file(content, mode);
    EXPECT_NE(refusal_of(file.path()).find("by other users"), std::string::npos);
  }
  EXPECT_NE(refusal_of(testing::TempDir() + "lockstep-no-such-file").find("No such file"), std::string::npos);
  const SecretFile little(content.substr(1), 0600);
  EXPECT_NE(refusal_of(little.path()).find("fewer than 32 bytes"), std::string::npos);
  EXPECT_NE(refusal_of(testing::TempDir()).find("is not a file"), std::string::npos);
}

TEST(JobSecret, FileGivesEachJobItsOwn) {
  const SecretFile file(std::string(40, 'x'), 0600);
  const std::string secret = secret_from_file(file.path(), "one");
  EXPECT_EQ(secret.size(), 32U);
  EXPECT_EQ(secret, secret_from_file(file.path(), "one"));
  EXPECT_NE(secret, secret_from_file(file.path(), "two"));
}

TEST(JobSecret, ByCredentialsItFollowsFromTheJob) {
  Started started{.by = "torchrun",
                  .channel = Channel::credentials,
                  .place = {.rank = 0, .size = 2, .local_size = 2, .job = "one"}};
  const std::string one = job_secret(started, {}).secret;
  EXPECT_EQ(one.size(), 32U);
  started.place.rank = 1;
  EXPECT_EQ(one, job_secret(started, {}).secret);
  started.place.job = "two";
  EXPECT_NE(one, job_secret(started, {}).secret);
}

TEST(JobSecret, OnSeveralHostsTheNameOfAJobIsNone) {
  const Started started{
      .by = "torchrun", .channel = Channel::credentials, .place = {.size = 2, .local_size = 1, .job = "one"}};
  try {
    job_secret(started, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("torchrun has no protected way to give them a secret"), std::string::npos)
        << error.what();
  }
}

TEST(JobSecret, WhereItIsInheritedNoneIsMadeUp) {
  EXPECT_EQ(job_secret({.by = "lockstep run", .channel = Channel::inherited, .place = {}}, {}).secret, "");
}

TEST(Host, CanBeOverriddenForTests) {
  const std::string here = host_id();
  EXPECT_EQ(here, host_id());
  ::setenv("LOCKSTEP_HOST_ID", "elsewhere", 1);
  EXPECT_EQ(host_id(), "elsewhere");
  ::unsetenv("LOCKSTEP_HOST_ID");
  EXPECT_EQ(host_id(), here);
}

TEST(Pmix, VersionIsReadFromItsText) {
  EXPECT_EQ(pmix_major_version("OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0)"), 4);
  EXPECT_EQ(pmix_major_version("OpenPMIx 3.1.5, repo rev: v3.1.5"), 3);
  EXPECT_EQ(pmix_major_version("Unknown"), 0);
}

}  // namespace
}  // namespace lockstep::rendezvous
