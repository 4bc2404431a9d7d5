// Strangers at every port of a job that runs: they are refused, and the job is not disturbed.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <new>
#include <set>
#include <sstream>

#include "base/sanitizer_test.hpp"
#include "lockstep/version.hpp"
#include "processes.hpp"
#include "strangers.hpp"

namespace lockstep {
namespace {

using testing_processes::Outcome;
using testing_processes::Processes;
using testing_processes::Strangers;

constexpr int kBoth = 2;
constexpr std::uint32_t kEpoch = 3;
constexpr std::size_t kElements = 100'000;

/// What the test and its ranks share.
struct Shared {
  std::atomic<bool> over = false;
  std::atomic<std::size_t> resident_before[kBoth] = {};
  std::atomic<std::size_t> resident_after[kBoth] = {};
};

class SharedPage {
 public:
  SharedPage() : page_(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    new (page_) Shared;
  }
  ~SharedPage() { ::munmap(page_, 4096); }
  Shared* operator->() const { return static_cast<Shared*>(page_); }

 private:
  void* page_;
};

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

/// The addresses at which a process listens.
std::vector<net::Address> listening(pid_t process) {
  const std::filesystem::path folder = "/proc/" + std::to_string(process);
  std::set<std::string> own;
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator(folder / "fd", gone))
    own.insert(std::filesystem::read_symlink(fd, gone).string());
  std::vector<net::Address> found;
  std::ifstream table(folder / "net/tcp");
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, skipped, inode;
    words >> number >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) words >> skipped;
    words >> inode;
    if (state != "0A" || !own.contains("socket:[" + inode + "]")) continue;
    EXPECT_EQ(local.substr(0, 8), "0100007F") << "it listens beyond this machine";
    found.push_back(net::Address::loopback().with_port(static_cast<std::uint16_t>(std::stoi(local.substr(9), {}, 16))));
  }
  return found;
}

/// Reduces until the test says that it is over, and looks at every result. What it says on standard error goes to
/// `log`.
std::string reduce_until_over(Engine& engine, const SharedPage& shared, const std::string& log) {
  if (std::freopen((log + std::to_string(engine.rank())).c_str(), "w", stderr) == nullptr) return "no log";
  std::vector<float> input(kElements, 1.0F / static_cast<float>(3 + engine.rank())), output(kElements);
  const float expected = 1.0F / 3.0F + 1.0F / 4.0F;
  const auto view = [](std::vector<float>& values) {
    return TensorView{.data = values.data(), .shape = {static_cast<std::int64_t>(values.size())}};
  };
  for (int round = 0;; ++round) {
    float go_on = shared->over ? 0.0F : 1.0F;
    engine.all_reduce({.data = &go_on, .shape = {1}}, {.data = &go_on, .shape = {1}}, {.op = ReduceOp::min});
    if (go_on == 0.0F) break;
    engine.all_reduce(view(input), view(output));
    if (output.front() != expected || output.back() != expected) return "a wrong sum";
    if (round != 20) continue;
    shared->resident_before[engine.rank()] = resident_bytes();
    Processes::say_ready();
  }
  shared->resident_after[engine.rank()] = resident_bytes();
  return "fine";
}

std::size_t lines_about_refusals(const std::string& log) {
  std::ifstream file(log);
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find("without this job's key") != line.npos ? 1 : 0;
  return count;
}

/// All of them at once.
void let_in_nobody(const Strangers& at_the_port) {
  using Way = bool (Strangers::*)() const;
  const std::pair<const char*, Way> ways[] = {
      {"HTTP", &Strangers::http},
      {"random bytes", &Strangers::random_bytes},
      {"huge lengths", &Strangers::huge_lengths},
      {"TLS without the key", &Strangers::tls_without_the_key},
      {"a wrong secret", &Strangers::wrong_secret},
      {"an old epoch", &Strangers::old_epoch},
      {"a replayed hello", &Strangers::replayed_hello},
      {"a truncated hello", &Strangers::truncated_hello},
      {"slow bytes", &Strangers::slow_bytes},
  };
  std::vector<std::pair<const char*, std::future<bool>>> all;
  for (const auto& [name, way] : ways) all.emplace_back(name, std::async(std::launch::async, way, &at_the_port));
  for (auto& [name, refused] : all) EXPECT_TRUE(refused.get()) << name;
}

TEST(RunningJob, IsNotDisturbedByStrangersAtEveryPort) {
  const SharedPage shared;
  const std::string log = testing::TempDir() + "strangers-" + std::to_string(::getpid()) + ".";
  Options options;
  options.epoch = kEpoch;
  options.meeting = net::Listener(net::Address::loopback()).address().text();
  Processes ranks(
      kBoth, [&](Engine& engine) { return reduce_until_over(engine, shared, log); }, options);
  ranks.await_ready(kBoth);

  std::vector<std::future<void>> doors;
  std::vector<std::vector<net::Socket>> crowds;
  for (std::uint32_t rank = 0; rank < kBoth; ++rank) {
    const net::Membership member{.secret = std::string(32, 's'),
                                 .job = net::job_tag(ranks.job()),
                                 .epoch = kEpoch,
                                 .rank = 1 - rank,
                                 .size = kBoth,
                                 .release = version()};
    const auto ports = listening(ranks.pid(static_cast<int>(rank)));
    EXPECT_EQ(ports.size(), 1u) << "a port that nobody looks after";
    for (const net::Address& port : ports) {
      const Strangers strangers(port, member, rank);
      crowds.push_back(strangers.half_open(1000));
      doors.push_back(std::async(std::launch::async, [strangers] { let_in_nobody(strangers); }));
    }
  }
  for (auto& door : doors) door.get();

  shared->over = true;
  const std::size_t allowed = under_sanitizer() ? 256u << 20 : 16u << 20;  // sanitizers keep what was freed
  for (int rank = 0; rank < kBoth; ++rank) {
    const Outcome outcome = ranks.wait(rank);
    EXPECT_EQ(outcome.said, "fine");
    EXPECT_LT(shared->resident_after[rank], shared->resident_before[rank] + allowed);
    EXPECT_EQ(lines_about_refusals(log + std::to_string(rank)), 1u) << "a line a minute";
    std::filesystem::remove(log + std::to_string(rank));
  }
}

}  // namespace
}  // namespace lockstep
