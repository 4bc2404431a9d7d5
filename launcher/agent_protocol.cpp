#include "agent_protocol.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace lockstep::launcher {

namespace {

using Message = nlohmann::json;

constexpr const char* kGreeting = "lockstep-agent";
constexpr std::size_t kFrameHeader = 13;
constexpr std::size_t kMostPayload = std::size_t{64} << 20;

// CBOR: text in it may be any bytes, which those of an environment are.
std::string to_bytes(const Message& object) {
  std::string bytes;
  Message::to_cbor(object, bytes);
  return bytes;
}

void put(std::string& bytes, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t take(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

/// A list that ends in nothing would lose its place in a line of words.
std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

std::string greeting_line(const Greeting& greeting) {
  return std::string(kGreeting) + " " + or_dash(greeting.version) + " " + or_dash(greeting.launcher_address) + " " +
         or_dash(greeting.host_address) + "\n";
}

std::optional<Greeting> parse_greeting(const std::string& line) {
  std::istringstream words(line);
  std::string first;
  Greeting greeting;
  words >> first >> greeting.version >> greeting.launcher_address >> greeting.host_address;
  if (first != kGreeting || greeting.version.empty()) return std::nullopt;
  for (std::string* address : {&greeting.launcher_address, &greeting.host_address}) {
    if (*address == "-") address->clear();
  }
  return greeting;
}

std::string encode(const Frame& frame) {
  std::string bytes(1, static_cast<char>(frame.kind));
  put(bytes, frame.rank);
  put(bytes, frame.number);
  put(bytes, static_cast<std::uint32_t>(frame.payload.size()));
  return bytes + frame.payload;
}

std::optional<Frame> FrameReader::next() {
  if (buffer_.size() < kFrameHeader) return std::nullopt;
  const auto kind = static_cast<unsigned char>(buffer_[0]);
  const std::size_t length = take(buffer_, 9);
  if (kind > static_cast<unsigned char>(FrameKind::done) || length > kMostPayload) {
    throw std::runtime_error("what came is no message of Lockstep");
  }
  if (buffer_.size() < kFrameHeader + length) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), take(buffer_, 1), take(buffer_, 5), buffer_.substr(kFrameHeader, length)};
  buffer_.erase(0, kFrameHeader + length);
  return frame;
}

std::string encode(const Assignment& assignment) {
  return to_bytes({{"job", assignment.job_id},
                   {"folder", assignment.folder},
                   {"command", assignment.command},
                   {"module", assignment.module},
                   {"environment", assignment.environment},
                   {"first_rank", assignment.first_rank},
                   {"ranks", assignment.ranks},
                   {"size", assignment.size},
                   {"host", assignment.host},
                   {"hosts", assignment.hosts},
                   {"binding", static_cast<int>(assignment.binding)},
                   {"restart", assignment.restart},
                   {"max_restarts", assignment.max_restarts},
                   {"columns", assignment.columns}});
}

Assignment decode_assignment(const std::string& bytes) {
  const Message object = Message::from_cbor(bytes);
  return {.job_id = object.at("job"),
          .folder = object.at("folder"),
          .command = object.at("command"),
          .module = object.at("module"),
          .environment = object.at("environment"),
          .first_rank = object.at("first_rank"),
          .ranks = object.at("ranks"),
          .size = object.at("size"),
          .host = object.at("host"),
          .hosts = object.at("hosts"),
          .binding = static_cast<Binding>(object.at("binding").get<int>()),
          .restart = object.at("restart"),
          .max_restarts = object.at("max_restarts"),
          .columns = object.at("columns")};
}

std::string encode(const Start& start) {
  return to_bytes({{"secret", start.secret}, {"address", start.master_address}, {"port", start.master_port}});
}

Start decode_start(const std::string& bytes) {
  const Message object = Message::from_cbor(bytes);
  return {object.at("secret"), object.at("address"), object.at("port")};
}

std::string encode(const RankEnd& end) {
  return to_bytes(
      {{"state", static_cast<int>(end.state)}, {"code", end.code}, {"memory", static_cast<int>(end.memory)}});
}

RankEnd decode_rank_end(const std::string& bytes) {
  const Message object = Message::from_cbor(bytes);
  return {static_cast<RankState>(object.at("state").get<int>()), object.at("code"),
          static_cast<MemoryEvidence>(object.at("memory").get<int>())};
}

std::vector<std::string> environment_for_other_hosts(const std::vector<std::string>& environment) {
  static constexpr std::array kOfThisMachine = {"HOME",
                                                "USER",
                                                "LOGNAME",
                                                "SHELL",
                                                "SHLVL",
                                                "PWD",
                                                "OLDPWD",
                                                "HOSTNAME",
                                                "HOST",
                                                "MAIL",
                                                "TMPDIR",
                                                "DISPLAY",
                                                "WAYLAND_DISPLAY",
                                                "XAUTHORITY",
                                                "WINDOWID",
                                                "TMUX",
                                                "TMUX_PANE",
                                                "STY",
                                                "_",
                                                "KRB5CCNAME",
                                                "INVOCATION_ID",
                                                "JOURNAL_STREAM",
                                                "LOCKSTEP_HOST_ID"};
  static constexpr std::array kOfThisSession = {"SSH_", "XDG_", "DBUS_", "BASH_FUNC_"};
  std::vector<std::string> result;
  for (const std::string& setting : environment) {
    const std::string name = setting.substr(0, setting.find('='));
    const bool stays = std::find(kOfThisMachine.begin(), kOfThisMachine.end(), name) != kOfThisMachine.end() ||
                       std::any_of(kOfThisSession.begin(), kOfThisSession.end(), [&](const char* prefix) {
                         return name.compare(0, std::strlen(prefix), prefix) == 0;
                       });
    if (!stays) result.push_back(setting);
  }
  return result;
}

}  // namespace lockstep::launcher
