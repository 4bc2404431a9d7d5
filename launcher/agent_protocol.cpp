#include "agent_protocol.hpp"

#include <algorithm>
#include <array>
#include <climits>
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
constexpr int kMostOfAnything = 1 << 24;  // ranks, hosts, restarts, columns

// CBOR: text in it may be any bytes, which those of an environment are.
std::string to_bytes(const Message& object) {
  std::string bytes;
  Message::to_cbor(object, bytes);
  return bytes;
}

[[noreturn]] void refuse() { throw std::runtime_error("what came is no message of Lockstep"); }

template <class Decode>
auto from_bytes(const std::string& bytes, const Decode& decode) {
  try {
    return decode(Message::from_cbor(bytes));
  } catch (const Message::exception&) {
    refuse();
  }
}

/// The library would also make an integer of a fraction, and cut off what does not fit.
int number(const Message& object, const char* name, int least = 0, int most = kMostOfAnything) {
  const Message& value = object.at(name);
  if (!value.is_number_integer()) refuse();
  const auto wide = value.get<std::int64_t>();
  if (wide < least || wide > most || (value.is_number_unsigned() && wide < 0)) refuse();
  return static_cast<int>(wide);
}

/// One of an enumeration that ends with `last`.
template <class Choice>
Choice choice(const Message& object, const char* name, Choice last) {
  return static_cast<Choice>(number(object, name, 0, static_cast<int>(last)));
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
  if (kind > static_cast<unsigned char>(FrameKind::done) || length > kMostPayload) refuse();
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
  return from_bytes(bytes, [](const Message& object) {
    Assignment assignment{.job_id = object.at("job"),
                          .folder = object.at("folder"),
                          .command = object.at("command"),
                          .module = object.at("module").get<bool>(),
                          .environment = object.at("environment"),
                          .first_rank = number(object, "first_rank"),
                          .ranks = number(object, "ranks"),
                          .size = number(object, "size"),
                          .host = number(object, "host"),
                          .hosts = number(object, "hosts"),
                          .binding = choice(object, "binding", Binding::core),
                          .restart = number(object, "restart"),
                          .max_restarts = number(object, "max_restarts"),
                          .columns = number(object, "columns")};
    if (assignment.first_rank + assignment.ranks > assignment.size) refuse();
    return assignment;
  });
}

std::string encode(const Start& start) {
  return to_bytes(
      {{"secret", start.secret}, {"address", start.master_address}, {"port", start.master_port}, {"call", start.call}});
}

Start decode_start(const std::string& bytes) {
  return from_bytes(bytes, [](const Message& object) {
    return Start{.secret = object.at("secret"),
                 .master_address = object.at("address"),
                 .master_port = number(object, "port", 0, 65535),
                 .call = object.at("call")};
  });
}

std::string encode(const RankEnd& end) {
  return to_bytes(
      {{"state", static_cast<int>(end.state)}, {"code", end.code}, {"memory", static_cast<int>(end.memory)}});
}

RankEnd decode_rank_end(const std::string& bytes) {
  return from_bytes(bytes, [](const Message& object) {
    return RankEnd{.state = choice(object, "state", RankState::lost),
                   .code = number(object, "code"),
                   .memory = choice(object, "memory", MemoryEvidence::control_group)};
  });
}

std::string encode(const std::vector<Whereabouts>& ranks) {
  Message list = Message::array();
  for (const Whereabouts& where : ranks) {
    Message entry = {{"rank", where.process.rank},           {"pid", where.process.pid},
                     {"state", std::string(1, where.state)}, {"stack", where.stack},
                     {"seconds", where.waiting_seconds},     {"last", where.last}};
    if (where.waiting_in) entry["waiting_in"] = *where.waiting_in;
    list.push_back(std::move(entry));
  }
  return to_bytes(list);
}

std::vector<Whereabouts> decode_whereabouts(const std::string& bytes) {
  return from_bytes(bytes, [](const Message& list) {
    if (!list.is_array()) refuse();
    std::vector<Whereabouts> ranks;
    for (const Message& entry : list) {
      const std::string state = entry.at("state");
      if (state.size() != 1) refuse();
      Whereabouts where{.process = {number(entry, "rank"), number(entry, "pid", 0, INT_MAX)},
                        .state = state.front(),
                        .stack = entry.at("stack"),
                        .waiting_in = std::nullopt,
                        .waiting_seconds = entry.at("seconds"),
                        .last = entry.at("last")};
      if (entry.contains("waiting_in")) where.waiting_in = entry.at("waiting_in").get<std::string>();
      ranks.push_back(std::move(where));
    }
    return ranks;
  });
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
