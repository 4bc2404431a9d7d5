// What a launcher and its agent on another host say to each other. What comes may be anything: ssh starts a shell
// there, which runs what its user has written.
#include <algorithm>
#include <stdexcept>

#include "launcher/agent_protocol.hpp"
#include "target.hpp"

namespace {

using namespace lockstep;
using namespace lockstep::launcher;

constexpr std::size_t kHeaderBytes = 13;

// Frames in the order in which they came, until the first that is bad.
std::vector<Frame> read(std::string_view bytes, std::size_t piece) {
  FrameReader reader;
  std::vector<Frame> frames;
  try {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      reader.feed(bytes.substr(0, piece));
      while (auto frame = reader.next()) frames.push_back(std::move(*frame));
    }
  } catch (const std::runtime_error&) {
  }
  return frames;
}

void check(const Frame& frame) {
  try {
    if (frame.kind == FrameKind::prepare) {
      const Assignment assignment = decode_assignment(frame.payload);
      must(assignment.first_rank >= 0 && assignment.ranks >= 0, "a rank below zero");
      must(assignment.first_rank + assignment.ranks <= assignment.size, "ranks beyond the size of the world");
      must(assignment.binding <= Binding::core, "a binding that there is not");
    } else if (frame.kind == FrameKind::start) {
      const Start start = decode_start(frame.payload);
      must(start.master_port >= 0 && start.master_port <= 65535, "a port that there is not");
    } else if (frame.kind == FrameKind::ended) {
      const RankEnd end = decode_rank_end(frame.payload);
      must(end.state <= RankState::lost && end.memory <= MemoryEvidence::control_group, "an end that there is not");
    } else if (frame.kind == FrameKind::found) {
      for (const Whereabouts& where : decode_whereabouts(frame.payload))
        must(where.process.rank >= 0, "a rank below zero");
    }
  } catch (const std::runtime_error&) {
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto whole = read(bytes, std::max<std::size_t>(size, 1));
  const auto in_pieces = read(bytes, 7);
  std::size_t total = 0;
  std::string again;
  for (const Frame& frame : whole) {
    check(frame);
    total += kHeaderBytes + frame.payload.size();
    again += encode(frame);
  }
  must(total <= size, "frames with more bytes than there were");
  must(again == bytes.substr(0, total), "a frame is not what was sent");
  must(whole.size() == in_pieces.size(), "frames depend on how their bytes were cut");
  const std::string line(bytes.substr(0, bytes.find('\n')));
  if (const auto greeting = parse_greeting(line)) must(!greeting->version.empty(), "a greeting without a version");
  return 0;
}
