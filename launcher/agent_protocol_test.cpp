#include "launcher/agent_protocol.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep::launcher {
namespace {

TEST(AgentProtocol, frames_come_whole_however_their_bytes_come) {
  const std::string bytes = encode(Frame{FrameKind::output, 3, 0, std::string("a\0b", 3)}) +
                            encode(Frame{FrameKind::started, 1, 4711}) + encode(Frame{FrameKind::done});
  FrameReader reader;
  std::vector<Frame> frames;
  for (const char byte : bytes) {
    reader.feed({&byte, 1});
    while (auto frame = reader.next()) frames.push_back(*frame);
  }
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].payload, std::string("a\0b", 3));
  EXPECT_EQ(frames[0].rank, 3u);
  EXPECT_EQ(frames[1].number, 4711u);
  EXPECT_EQ(frames[2].kind, FrameKind::done);
}

TEST(AgentProtocol, what_is_no_frame_is_refused_before_memory_is_taken_for_it) {
  FrameReader unknown;
  unknown.feed(std::string(13, '\x7f'));
  EXPECT_THROW(unknown.next(), std::runtime_error);
  FrameReader long_one;
  std::string header = encode(Frame{FrameKind::found});
  header[12] = '\x7f';
  long_one.feed(header);
  EXPECT_THROW(long_one.next(), std::runtime_error);
  EXPECT_THROW(decode_assignment("nonsense"), std::runtime_error);
  EXPECT_THROW(decode_start(encode(RankEnd{})), std::runtime_error);
}

TEST(AgentProtocol, numbers_that_cannot_be_meant_are_refused) {
  const auto expect_refused = [](const auto& change) {
    Assignment assignment;
    assignment.size = 3;
    EXPECT_NO_THROW(decode_assignment(encode(assignment)));
    change(assignment);
    EXPECT_THROW(decode_assignment(encode(assignment)), std::runtime_error);
  };
  expect_refused([](Assignment& assignment) { assignment.ranks = 4; });
  expect_refused([](Assignment& assignment) { assignment.ranks = -1; });
  expect_refused([](Assignment& assignment) { assignment.binding = static_cast<Binding>(4); });
  EXPECT_THROW(decode_start(encode(Start{"secret", "address", 65536})), std::runtime_error);
  EXPECT_THROW(decode_rank_end(encode(RankEnd{.state = static_cast<RankState>(6)})), std::runtime_error);
}

TEST(AgentProtocol, messages_arrive_as_they_were_sent) {
  Assignment sent;
  sent.job_id = "job";
  sent.command = {"sh", "-c", "true"};
  sent.environment = {"A=\xff not UTF-8", "B="};
  sent.first_rank = 2;
  sent.ranks = 2;
  sent.size = 4;
  sent.binding = Binding::core;
  const Assignment got = decode_assignment(encode(sent));
  EXPECT_EQ(got.command, sent.command);
  EXPECT_EQ(got.environment, sent.environment);
  EXPECT_EQ(got.first_rank, 2);
  EXPECT_EQ(got.binding, Binding::core);
  const std::string secret("\0\xff\x80", 3);
  EXPECT_EQ(decode_start(encode(Start{secret, "10.0.0.1", 80})).secret, secret);
  EXPECT_EQ(decode_rank_end(encode(RankEnd{RankState::killed, 9})).code, 9);
}

TEST(AgentProtocol, whereabouts_arrive_as_they_were_sent) {
  Whereabouts waiting;
  waiting.process = {3, 4711};
  waiting.state = 'S';
  waiting.stack = {"Thread 1:", "  File \"\xff.py\""};
  waiting.waiting_in = "barrier";
  waiting.waiting_seconds = 1.5;
  Whereabouts idle;
  idle.last = "barrier, submitted 3.0 s ago";
  const auto got = decode_whereabouts(encode(std::vector<Whereabouts>{waiting, idle}));
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].process.rank, 3);
  EXPECT_EQ(got[0].process.pid, 4711);
  EXPECT_EQ(got[0].state, 'S');
  EXPECT_EQ(got[0].stack, waiting.stack);
  EXPECT_EQ(got[0].waiting_in, "barrier");
  EXPECT_EQ(got[0].waiting_seconds, 1.5);
  EXPECT_FALSE(got[1].waiting_in);
  EXPECT_EQ(got[1].last, idle.last);
}

TEST(AgentProtocol, a_greeting_is_found_among_other_lines) {
  EXPECT_FALSE(parse_greeting("Welcome to this machine"));
  EXPECT_FALSE(parse_greeting("lockstep-agent"));
  const auto by_ssh = parse_greeting("lockstep-agent 1.2.3 10.0.0.1 10.0.0.2");
  ASSERT_TRUE(by_ssh);
  EXPECT_EQ(by_ssh->version, "1.2.3");
  EXPECT_EQ(by_ssh->launcher_address, "10.0.0.1");
  EXPECT_EQ(by_ssh->host_address, "10.0.0.2");
  const auto here = parse_greeting(greeting_line({.version = "1.2.3"}));
  ASSERT_TRUE(here);
  EXPECT_EQ(here->host_address, "");
}

TEST(AgentProtocol, what_describes_this_machine_stays_here) {
  const std::vector<std::string> environment = {"PATH=/a:/b",    "HOME=/home/me", "SSH_CONNECTION=x",  "CUDA_HOME=/c",
                                                "HOMEWORK=done", "XDG_SEAT=1",    "LOCKSTEP_HOST_ID=h"};
  EXPECT_EQ(environment_for_other_hosts(environment),
            (std::vector<std::string>{"PATH=/a:/b", "CUDA_HOME=/c", "HOMEWORK=done"}));
}

}  // namespace
}  // namespace lockstep::launcher
