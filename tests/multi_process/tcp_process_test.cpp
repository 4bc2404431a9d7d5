// Real processes that reach each other over TCP, as ranks of one host and as if each were on a host of its own.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "net/socket.hpp"
#include "processes.hpp"

namespace lockstep {
namespace {

using testing_processes::Outcome;
using testing_processes::Processes;

// An address that is free now, where rank 0 may listen.
std::string free_address() { return net::Listener(net::Address::loopback()).address().text(); }

enum class Way { shm, tcp, between_hosts };

Options options_for(Way way) {
  Options options;
  if (way == Way::tcp) options.transport = "tcp";
  if (way == Way::between_hosts) options.meeting = free_address();
  return options;
}

std::string hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return std::to_string(hash);
}

TensorView tensor_of(std::vector<float>& values, const std::string& name = {}) {
  return {
      .data = values.data(), .dtype = DType::f32, .shape = {static_cast<std::int64_t>(values.size())}, .name = name};
}

// Sums whose bits depend on the order of the additions.
std::string reduce_all_sizes(Engine& engine) {
  std::string hashes;
  for (const std::size_t elements : {1, 20, 1000, 300'000, 3'000'001}) {
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
      values[i] = 1.0F / static_cast<float>(1 + i + static_cast<std::size_t>(engine.rank()) * 7919);
    engine.all_reduce(tensor_of(values), tensor_of(values));
    hashes += hash_of(values) + " ";
  }
  engine.barrier();
  return hashes;
}

TEST(TcpProcesses, GetTheSameBitsAsOverSharedMemory) {
  for (const int size : {2, 4}) {
    std::string expected;
    for (const Way way : {Way::shm, Way::tcp, Way::between_hosts}) {
      Processes ranks(size, reduce_all_sizes, options_for(way));
      for (int rank = 0; rank < size; ++rank) {
        const Outcome outcome = ranks.wait(rank);
        EXPECT_TRUE(outcome.exited_with(0)) << outcome.said;
        if (expected.empty()) expected = outcome.said;
        EXPECT_EQ(outcome.said, expected) << size << " ranks, way " << static_cast<int>(way);
      }
    }
  }
}

TEST(TcpProcesses, WithEncryptedDataToo) {
  Options options = options_for(Way::tcp);
  options.encrypt_data = true;
  Processes ranks(2, reduce_all_sizes, options);
  const std::string first = ranks.wait(0).said;
  EXPECT_EQ(ranks.wait(1).said, first);
}

TEST(TcpProcesses, AForkedChildIsRefusedAndHoldsNoConnection) {
  Processes ranks(
      2,
      [](Engine& engine) {
        engine.barrier();
        const pid_t child = ::fork();
        if (child == 0) {
          try {
            engine.barrier();
          } catch (const Error& error) {
            ::_exit(std::string(error.what()).find("parent process") != std::string::npos ? 7 : 8);
          }
          ::_exit(9);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        engine.barrier();
        return std::to_string(WEXITSTATUS(status));
      },
      options_for(Way::tcp));
  EXPECT_EQ(ranks.wait(0).said, "7");
  EXPECT_EQ(ranks.wait(1).said, "7");
}

TEST(TcpProcesses, EnginesOfAProcessMeetAtTheSamePlaceOneAfterTheOther) {
  const Options options = options_for(Way::between_hosts);
  Processes ranks(
      2,
      [&](Engine& first) {
        first.barrier();
        Options again = options;
        again.rank = first.rank();
        again.size = 2;
        again.job = "again";
        again.secret = std::string(32, 'a');
        for (std::uint32_t i = 1; i <= 10; ++i) {
          again.epoch = i;
          Engine engine(again);
          std::vector<float> values(1000, 1.0F);
          engine.all_reduce(tensor_of(values), tensor_of(values));
          if (values[999] != 2.0F) throw std::runtime_error("wrong sum");
        }
        return std::string("fine");
      },
      options);
  EXPECT_EQ(ranks.wait(0).said, "fine");
  EXPECT_EQ(ranks.wait(1).said, "fine");
}

TEST(TcpProcesses, SurvivorsGoOnWithoutTheDead) {
  for (const Way way : {Way::tcp, Way::between_hosts}) {
    Processes ranks(
        3,
        [](Engine& engine) -> std::string {
          std::vector<float> values(1000, 1.0F);
          engine.all_reduce(tensor_of(values), tensor_of(values));
          if (engine.rank() == 0) Processes::end_at_once("dead");
          try {
            for (;;) engine.all_reduce(tensor_of(values), tensor_of(values));
          } catch (const Error&) {
          }
          const auto next = engine.continue_with_survivors();
          std::vector<float> ones(1000, 1.0F);
          next->all_reduce(tensor_of(ones), tensor_of(ones));
          return std::to_string(next->rank()) + " of " + std::to_string(next->size()) + ": " + std::to_string(ones[7]);
        },
        options_for(way));
    EXPECT_EQ(ranks.wait(1).said, "0 of 2: 2.000000");
    EXPECT_EQ(ranks.wait(2).said, "1 of 2: 2.000000");
  }
}

TEST(TcpProcesses, AMissingRankIsNamedOnAllThatArrived) {
  Options options = options_for(Way::between_hosts);
  options.start_timeout = std::chrono::milliseconds(500);
  options.secret = std::string(32, 'l');
  options.size = 2;
  for (const int rank : {0, 1}) {
    options.rank = rank;
    try {
      Engine engine(options);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_NE(std::string(error.what()).find(rank == 0 ? "missing: 1" : "rank 0 did not arrive"), std::string::npos)
          << error.what();
    }
    options.meeting = free_address();  // this process goes on to listen at the other as rank 0
  }
}

// Where rank 0 should listen, another program does.
class OtherProgram {
 public:
  explicit OtherProgram(const std::string& answer) : thread_([this, answer] { serve(answer); }) {}
  ~OtherProgram() {
    over_ = true;
    thread_.join();
  }
  std::string address() const { return listener_.address().text(); }

 private:
  void serve(const std::string& answer) {
    while (!over_) {
      net::wait_for(listener_.fd(), POLLIN, net::Clock::now() + std::chrono::milliseconds(20));
      if (auto caller = listener_.accept(); caller && !answer.empty())
        caller->write_some(std::as_bytes(std::span(answer)));
    }
  }

  struct OpenListener : net::Listener {
    OpenListener() : net::Listener(net::Address::loopback()) { open(); }
  } listener_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

TEST(TcpProcesses, AnotherProgramAtTheMeetingIsNamedOnEveryRankWithinSeconds) {
  for (const char* answer : {"", "HTTP/1.1 400 Bad Request\r\n\r\n"}) {
    const OtherProgram other(answer);
    Options options;
    options.meeting = other.address();
    const auto began = std::chrono::steady_clock::now();
    Processes ranks(
        3, [](Engine&) { return std::string("met"); }, options);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string said = ranks.wait(rank).said;
      EXPECT_NE(said.find(other.address()), std::string::npos) << said;
      EXPECT_NE(said.find(rank == 0 ? "another program has the port" : "is not rank 0 of this job"), std::string::npos)
          << said;
      EXPECT_NE(said.find("LOCKSTEP_MEETING=host:port"), std::string::npos) << said;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8));
  }
}

TEST(TcpProcesses, WhatCannotWorkIsRefusedInWords) {
  const auto refusal_of = [](const Options& options) {
    try {
      Engine engine(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Options options;
  options.size = 2;
  EXPECT_NE(refusal_of(options).find("set LOCKSTEP_SECRET_FILE"), std::string::npos) << refusal_of(options);
  options.secret = std::string(32, 's');
  EXPECT_NE(refusal_of(options).find("Set MASTER_ADDR and MASTER_PORT"), std::string::npos) << refusal_of(options);
  options.transport = "shm";
  EXPECT_NE(refusal_of(options).find("share no memory"), std::string::npos) << refusal_of(options);
  options.transport = "pigeon";
  EXPECT_NE(refusal_of(options).find("there is no transport 'pigeon'"), std::string::npos) << refusal_of(options);
}

}  // namespace
}  // namespace lockstep
