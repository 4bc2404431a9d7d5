#include "whereabouts.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>

#include "processes.hpp"
#include "trace/flight_reader.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The memory file into which Python's faulthandler writes when asked (python/lockstep/whereabouts.py).
constexpr std::string_view kStackFile = "/memfd:lockstep-stack";
constexpr int kAskSignal = SIGQUIT;
constexpr milliseconds kAnswerTime{500};
constexpr milliseconds kCalm{20};  // an answer that has not grown for so long is complete
constexpr std::size_t kLongestAnswer = 65536;

UniqueFd open_stack_file(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}/fd", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(folder.c_str()), ::closedir);
  while (const dirent* entry = list ? ::readdir(list.get()) : nullptr) {
    const std::string path = folder + "/" + entry->d_name;
    std::array<char, 64> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size() - 1);
    if (length > 0 && std::string_view(target.data()).find(kStackFile) == 0) {
      return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    }
  }
  return UniqueFd();
}

/// Without a handler the signal would end the process.
bool catches_signal(pid_t pid, int number) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigCgt:", 0) != 0) continue;
    const unsigned long long mask = std::strtoull(line.c_str() + 7, nullptr, 16);
    return (mask >> (number - 1) & 1) != 0;
  }
  return false;
}

off_t size_of(const UniqueFd& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 ? status.st_size : 0;
}

/// One question to one rank.
struct Question {
  UniqueFd file;
  off_t begin = 0;
  off_t seen = 0;
  Clock::time_point grown{};

  bool is_answered() const { return !file || (seen > begin && Clock::now() - grown > kCalm); }
};

Question ask(pid_t pid, char state) {
  Question question;
  if (state == 'T' || state == 't') return question;  // it would answer when it goes on, and nobody would listen
  question.file = open_stack_file(pid);
  if (!question.file || !catches_signal(pid, kAskSignal)) return {};
  question.begin = question.seen = size_of(question.file);
  ::kill(pid, kAskSignal);
  return question;
}

void wait_for_answers(std::vector<Question>& questions) {
  const auto deadline = Clock::now() + kAnswerTime;
  const auto answered = [](const Question& question) { return question.is_answered(); };
  while (Clock::now() < deadline && !std::all_of(questions.begin(), questions.end(), answered)) {
    for (Question& question : questions) {
      if (!question.file) continue;
      const off_t size = size_of(question.file);
      if (size != question.seen) question.grown = Clock::now();
      question.seen = size;
    }
    ::usleep(2000);
  }
}

std::vector<std::string> lines_of(const Question& question) {
  std::vector<std::string> lines;
  if (!question.file || question.seen <= question.begin) return lines;
  std::string text(std::min(static_cast<std::size_t>(question.seen - question.begin), kLongestAnswer), '\0');
  const ssize_t count = ::pread(question.file.get(), text.data(), text.size(), question.begin);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string name_of(const trace::SeenOperation& operation) {
  return operation.name.empty() ? operation.kind : fmt::format("{} `{}`", operation.kind, operation.name);
}

void look_at_operations(Whereabouts& where) {
  const auto operations = trace::FlightReader::read(where.process.pid);
  if (!operations) return;
  for (const trace::SeenOperation& operation : *operations) {
    if (operation.is_step) continue;
    if (operation.is_open() && !where.waiting_in) {
      where.waiting_in = name_of(operation);
      where.waiting_seconds = operation.seconds;
    }
    where.last = fmt::format("{}, submitted {:.1f} s ago", name_of(operation), operation.seconds);
  }
}

std::string state_text(char state) {
  switch (state) {
    case 'T':
      return "state T (stopped)";
    case 't':
      return "state t (stopped by a debugger)";
    case 'D':
      return "state D (in the kernel, likely reading or writing)";
    case 'R':
      return "state R (running)";
    case 'S':
      return "state S (sleeping)";
    case 'Z':
      return "state Z (dead)";
    default:
      return fmt::format("state {}", state);
  }
}

/// "2", and where in a job of several hosts.
std::string number_of(const Whereabouts& where) {
  return where.host.empty() ? fmt::format("{}", where.process.rank)
                            : fmt::format("{} on {}", where.process.rank, where.host);
}

/// The innermost call of the thread that Python calls the current one.
std::string innermost(const Whereabouts& where) {
  for (const std::string& line : where.stack) {
    if (line.rfind("  File ", 0) == 0) return line.substr(2);
  }
  return {};
}

}  // namespace

std::vector<Whereabouts> find_whereabouts(const std::vector<RankProcess>& ranks) {
  std::vector<Whereabouts> result;
  std::vector<Question> questions;
  for (const RankProcess& process : ranks) {
    Whereabouts where;
    where.process = process;
    if (const auto info = read_process(process.pid)) where.state = info->state;
    look_at_operations(where);
    questions.push_back(ask(process.pid, where.state));
    result.push_back(std::move(where));
  }
  wait_for_answers(questions);
  for (std::size_t i = 0; i < result.size(); ++i) result[i].stack = lines_of(questions[i]);
  return result;
}

std::vector<std::string> describe(const std::vector<Whereabouts>& ranks) {
  std::vector<std::string> lines;
  for (const Whereabouts& where : ranks) {
    const std::string operation = where.waiting_in
                                      ? fmt::format(", in {} for {:.1f} s", *where.waiting_in, where.waiting_seconds)
                                  : where.last.empty() ? ""
                                                       : ", in no operation; the last was " + where.last;
    lines.push_back(
        fmt::format("rank {} (pid {}): {}{}", number_of(where), where.process.pid, state_text(where.state), operation));
    for (const std::string& line : where.stack) lines.push_back("    " + line);
  }
  if (const std::string sentence = waiting_sentence(ranks); !sentence.empty()) lines.push_back(sentence);
  return lines;
}

std::vector<std::string> describe_missing(const std::vector<Whereabouts>& ranks) {
  std::vector<Whereabouts> missing;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(missing),
               [](const Whereabouts& where) { return !where.waiting_in; });
  if (missing.empty() || missing.size() == ranks.size()) return describe(ranks);
  std::vector<std::string> lines = describe(missing);
  lines.push_back(waiting_sentence(ranks));
  return lines;
}

std::string waiting_sentence(const std::vector<Whereabouts>& ranks) {
  std::map<std::string, std::vector<int>> waiting;
  for (const Whereabouts& where : ranks) {
    if (where.waiting_in) waiting[*where.waiting_in].push_back(where.process.rank);
  }
  if (waiting.empty() || (waiting.size() == 1 && waiting.begin()->second.size() == ranks.size())) return {};
  std::string text;
  for (const auto& [operation, who] : waiting) {
    text += fmt::format("{}{} in {}", text.empty() ? "waiting: " : ", ", fmt::join(who, ","), operation);
  }
  std::string missing;
  for (const Whereabouts& where : ranks) {
    if (where.waiting_in) continue;
    const std::string at = innermost(where);
    missing += fmt::format("{}{}, {}{}", missing.empty() ? "; missing: " : "; ", number_of(where),
                           state_text(where.state), at.empty() ? "" : ", at " + at);
  }
  return text + missing;
}

}  // namespace lockstep::launcher
