#include "launcher/secret.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace lockstep::launcher {
namespace {

std::array<unsigned char, kSecretBytes> contents(const UniqueFd& fd) {
  std::array<unsigned char, kSecretBytes> bytes{};
  EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

TEST(Secret, is_sealed_and_can_be_read_again) {
  const UniqueFd fd = make_secret();
  EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  struct stat status {};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(kSecretBytes));
  EXPECT_EQ(contents(fd), contents(fd));
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
}

TEST(Secret, differs_from_job_to_job) {
  EXPECT_NE(contents(make_secret()), contents(make_secret()));
  EXPECT_NE(make_job_id(), make_job_id());
  EXPECT_EQ(make_job_id().size(), 16u);
}

}  // namespace
}  // namespace lockstep::launcher
