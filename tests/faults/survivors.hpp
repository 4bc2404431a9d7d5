// What the tests of dying and stopped ranks share: a rank that reduces until it is told of the end, what it then
// reports, and a look at who still holds the shared memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../multi_process/processes.hpp"

namespace lockstep::testing_faults {

using Clock = std::chrono::steady_clock;
using testing_processes::Outcome;
using testing_processes::Processes;

inline constexpr int kRanks = 3;  ///< one before and one after the middle

/// What the ranks are doing when one of them is hit.
struct Activity {
  std::string name;
  std::size_t elements;
  std::chrono::milliseconds pause;
};
inline void PrintTo(const Activity& activity, std::ostream* out) { *out << activity.name; }  // GoogleTest's name for it
inline const Activity kInALargeOperation{"InALargeOperation", 64 << 20, std::chrono::milliseconds(0)};  // of 256 MB
inline const Activity kBetweenOperations{"BetweenOperations", 1000, std::chrono::milliseconds(20)};

/// Reduces until an operation throws, and returns when (the steady clock is the same in all processes), the code and
/// the words.
inline std::string reduce_until_error(Engine& engine, const Activity& activity) {
  auto* values = static_cast<float*>(engine.allocate(activity.elements * sizeof(float)));
  std::vector<float> own;
  if (values == nullptr) {  // there is no shared memory
    own.resize(activity.elements);
    values = own.data();
  }
  const TensorView tensor{.data = values, .shape = {static_cast<std::int64_t>(activity.elements)}, .name = "gradient"};
  for (std::size_t i = 0; i < activity.elements; ++i) values[i] = 0.0F;
  engine.all_reduce(tensor, tensor);
  Processes::say_ready();
  try {
    for (;;) {
      engine.all_reduce(tensor, tensor);
      std::this_thread::sleep_for(activity.pause);
    }
  } catch (const Error& error) {
    const auto now = Clock::now().time_since_epoch();
    return std::to_string(std::chrono::nanoseconds(now).count()) + " " +
           std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
}

/// A survivor was told of the loss of `victim`, in time.
inline void expect_lost(const Outcome& outcome, int victim, const std::string& how, Clock::time_point since,
                        Clock::duration bound) {
  std::istringstream words(outcome.said);
  std::int64_t when = 0;
  int code = 0;
  std::string text;
  words >> when >> code;
  std::getline(words, text);
  EXPECT_EQ(static_cast<ErrorCode>(code), ErrorCode::peer_lost) << outcome.said;
  EXPECT_NE(text.find("lost rank " + std::to_string(victim)), std::string::npos) << outcome.said;
  EXPECT_NE(text.find(how), std::string::npos) << outcome.said;
  EXPECT_LT(Clock::time_point(std::chrono::nanoseconds(when)) - since, bound);
}

/// The shared memory that a process has mapped or open, by inode.
inline std::set<std::uint64_t> shared_memory_of(const std::filesystem::path& process) {
  std::set<std::uint64_t> found;
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:lockstep") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string skipped;
    std::uint64_t inode = 0;
    fields >> skipped >> skipped >> skipped >> skipped >> inode;
    found.insert(inode);
  }
  std::error_code gone;  // a process may end, or close a file, while we look
  for (const auto& fd : std::filesystem::directory_iterator(process / "fd", gone)) {
    struct stat status {};
    if (std::filesystem::read_symlink(fd, gone).string().starts_with("/memfd:lockstep") &&
        ::stat(fd.path().c_str(), &status) == 0) {
      found.insert(status.st_ino);
    }
  }
  return found;
}

/// The sockets that a process has open.
inline std::set<std::string> sockets_of(const std::filesystem::path& process) {
  std::set<std::string> found;
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator(process / "fd", gone)) {
    const std::string target = std::filesystem::read_symlink(fd, gone).string();
    if (target.starts_with("socket:")) found.insert(target);
  }
  return found;
}

/// Watches over a world: its shared memory must be held by nobody in the end, and a rank holds no socket of the
/// meeting.
class SharedMemoryWatch {
 public:
  explicit SharedMemoryWatch(const Processes& ranks) : memory_(shared_memory_of(folder_of(ranks.pid(0)))) {
    EXPECT_EQ(memory_.size(), 2U) << "the world's shared memory, and the sign to this rank's flight record";
    const std::set<std::string> inherited = sockets_of("/proc/self");
    for (const std::string& socket : sockets_of(folder_of(ranks.pid(0)))) {
      EXPECT_TRUE(inherited.contains(socket)) << "the meeting is over, but " << socket << " is open";
    }
  }

  /// To be called when all ranks, and what they started, have ended.
  void expect_nothing_left() const {
    std::error_code gone;
    for (const auto& process : std::filesystem::directory_iterator("/proc", gone)) {
      if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
      for (const std::uint64_t inode : shared_memory_of(process)) {
        EXPECT_FALSE(memory_.contains(inode)) << process.path() << " still holds the shared memory of this world";
      }
    }
  }

 private:
  static std::filesystem::path folder_of(pid_t pid) { return "/proc/" + std::to_string(pid); }
  std::set<std::uint64_t> memory_;
};

}  // namespace lockstep::testing_faults
