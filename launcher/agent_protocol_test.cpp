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
  std::string header = encode(Frame{FrameKind::words});
  header[12] = '\x7f';
  long_one.feed(header);
  EXPECT_THROW(long_one.next(), std::runtime_error);
  EXPECT_ANY_THROW(decode_assignment("nonsense"));
}

TEST(AgentProtocol, messages_arrive_as_they_were_sent) {
  Assignment sent;
  sent.job_id = "job";
  sent.command = {"sh", "-c", "true"};
  sent.environment = {"A=\xff not UTF-8", "B="};
  sent.first_rank = 2;
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
