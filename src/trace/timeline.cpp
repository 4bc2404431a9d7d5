#include "trace/timeline.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/log.hpp"
#include "lockstep/error.hpp"
#include "trace/write_whole.hpp"

namespace lockstep::trace {
namespace {

constexpr std::uint32_t kStepLane = 0;
// Programs written for Horovod look into the file 100 ms after an operation, and expect to find it there.
constexpr auto kInterval = std::chrono::milliseconds(40);

// Names come from the program and may be no UTF-8; a JSON file must be.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Horovod's spelling: "all-reduce" is ALLREDUCE.
std::string phase_name(const char* kind) {
  std::string name;
  for (const char* c = kind; *c != 0; ++c) {
    if (*c != '-') name += *c == ' ' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return name;
}

// steady_clock is common to the processes of one host and starts with it, which its boot identifies.
std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::int64_t system_minus_steady_ns() {
  const auto system = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(system - steady).count();
}

}  // namespace

std::string timeline_path(const std::string& path, int rank) {
  std::filesystem::path result(path);
  const std::string extension = result.extension();
  return result.replace_extension(fmt::format("{}{}", rank, extension));
}

// --- starting and stopping

void Timeline::start(const std::string& path, int rank, TimelineOptions options) {
  std::lock_guard starting(starting_);
  if (running())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the timeline of rank {} is being recorded already. Stop it first.", rank));
  if (thread_.joinable()) thread_.join();  // it gave up because of its file
  const std::string own = options.exact_path ? path : timeline_path(path, rank);
  file_.reset(::open(own.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file_) throw_errno("create the timeline " + own);
  rank_ = rank;
  mark_cycles_ = options.mark_cycles;
  process_ = ::getpid();
  depth_.assign(1, 0);
  newest_ns_ = 0;
  last_ = ClockPoint::now();
  // Whatever follows begins with a comma: the file, cut after any line, is valid JSON but for the last bracket.
  text_ = fmt::format(R"([
{{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}}
,{{"name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}}}}
,{{"name":"lockstep_clock","ph":"M","pid":{0},"args":{{"boot_id":{1},"system_minus_steady_ns":{2}}}}}
)",
                      rank, json_text(boot_id()), system_minus_steady_ns());
  name_lane(kStepLane);

  std::lock_guard lock(mutex_);
  records_.resize(room_);  // touched now, so that recording meets no page fault
  records_.clear();
  busy_.assign(1, std::uint64_t{1} << kStepLane);
  left_out_ = 0;
  stopping_ = false;
  ++session_;
  thread_ = std::thread([this] { run(); });
  running_.store(true, std::memory_order_relaxed);
}

void Timeline::stop() {
  if (const pid_t process = process_.load(); process != ::getpid()) {
    // Never started; or a forked child's copy: the thread does not exist here, and the file is the parent's.
    if (process != 0 && thread_.joinable()) thread_.detach();
    return;
  }
  std::lock_guard starting(starting_);
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    running_.store(false, std::memory_order_relaxed);
    stopping_ = true;
    wake_.notify_all();
  }
  thread_.join();
  file_.reset();
  std::lock_guard lock(mutex_);
  std::vector<Record>().swap(records_);
}

// --- recording

std::uint32_t Timeline::take_lane() {
  std::size_t word = 0;
  while (word < busy_.size() && busy_[word] == ~std::uint64_t{0}) ++word;
  if (word == busy_.size()) busy_.push_back(0);
  const int bit = std::countr_one(busy_[word]);
  busy_[word] |= std::uint64_t{1} << bit;
  return static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(bit));
}

Timeline::Record& Timeline::push(Event event, Ticks now, const char* kind, std::uint32_t lane) {
  Record& record = records_.emplace_back();
  record.at = now;
  record.kind = kind;
  record.lane = lane;
  record.event = event;
  if (records_.size() == room_ / 2) wake_.notify_all();
  return record;
}

Timeline::Ticket Timeline::begin(Ticks now, const char* kind, std::string_view name, std::uint64_t id,
                                 std::uint64_t bytes, std::uint32_t group_size) {
  std::lock_guard lock(mutex_);
  if (stopping_) return {};
  if (records_.size() >= room_) {
    ++left_out_;
    return {};
  }
  Record& record = push(Event::submitted, now, kind, take_lane());
  record.id = id;
  record.bytes = bytes;
  record.group_size = group_size;
  record.name.assign_end(name);
  return {.session = session_, .lane = record.lane};
}

Timeline::Ticket Timeline::begin_step(Ticks now, std::uint64_t number) {
  std::lock_guard lock(mutex_);
  if (stopping_) return {};
  push(Event::step, now, "", kStepLane).id = number;
  return {.session = session_, .lane = kStepLane};
}

// What goes on with an operation that is shown always finds room: slices must be closed.
void Timeline::append(const Ticket& ticket, Event event, Ticks now, const char* kind, std::string_view text) {
  std::lock_guard lock(mutex_);
  if (stopping_ || ticket.session != session_) return;
  push(event, now, kind, ticket.lane).name.assign(text);
  const bool ended = event == Event::done || event == Event::failed;
  if (ended && ticket.lane != kStepLane) busy_[ticket.lane / 64] &= ~(std::uint64_t{1} << (ticket.lane % 64));
}

// --- writing

void Timeline::run() {
  std::vector<Record> taken(room_);  // takes turns with records_
  bool stopping = false;
  bool failed = false;
  while (!stopping && !failed) {
    std::uint64_t left_out = 0;
    {
      std::unique_lock lock(mutex_);
      // gcc 12's thread sanitizer does not know the system call behind a wait on the steady clock.
      const auto limit = std::chrono::system_clock::now() + kInterval;
      wake_.wait_until(lock, limit, [&] { return stopping_ || records_.size() >= room_ / 2; });
      taken.clear();
      taken.swap(records_);
      left_out = std::exchange(left_out_, 0);
      stopping = stopping_;
    }
    const ClockPoint now = ClockPoint::now();
    const TickScale scale(last_, now);
    for (const Record& record : taken) add_record(record, scale.steady_ns(record.at));
    last_ = now;
    if (left_out > 0) {
      add_event('i', kStepLane, "LEFT_OUT", now.steady_ns,
                fmt::format(R"(,"s":"p","args":{{"operations":{}}})", left_out));
    }
    if (stopping) {
      for (std::uint32_t lane = 0; lane < depth_.size(); ++lane) close_slices(lane, 0, now.steady_ns, "");
      text_ += "]\n";
    }
    failed = !write_whole(file_.get(), text_);
    text_.clear();
  }
  if (failed) {
    log::warn(rank_,
              fmt::format("the timeline ends here, because its file cannot be written: {}", std::strerror(errno)));
    std::lock_guard lock(mutex_);
    stopping_ = true;
    running_.store(false, std::memory_order_relaxed);
  }
}

// An operation is a slice with its tensor's name, and in it two others: until all ranks had submitted it, and the work.
void Timeline::add_record(const Record& record, std::int64_t ns) {
  const std::string_view name = record.name.view();
  switch (record.event) {
    case Event::submitted:
      if (depth_[kStepLane] == 0) mark_cycle(ns);
      open_slice(record.lane, name.empty() ? phase_name(record.kind) : name, ns,
                 fmt::format(R"("id":"{:016x}","bytes":{},"ranks":{})", record.id, record.bytes, record.group_size));
      open_slice(record.lane, "NEGOTIATE_" + phase_name(record.kind), ns, "");
      break;
    case Event::matched:
      close_slices(record.lane, 1, ns, "");
      open_slice(record.lane, phase_name(record.kind), ns, "");
      break;
    case Event::note:
      add_event('i', record.lane, name, ns, R"(,"s":"t")");
      break;
    case Event::done:
      close_slices(record.lane, 0, ns, "");
      break;
    case Event::failed:
      close_slices(record.lane, 0, ns, fmt::format(R"("failed":{})", json_text(name)));
      break;
    case Event::step:
      mark_cycle(ns);
      open_slice(record.lane, fmt::format("step {}", record.id), ns, "");
      break;
  }
}

void Timeline::mark_cycle(std::int64_t ns) {
  if (mark_cycles_) add_event('i', kStepLane, "CYCLE_START", ns, R"(,"s":"p")");
}

void Timeline::open_slice(std::uint32_t lane, std::string_view name, std::int64_t ns, std::string_view arguments) {
  if (lane >= depth_.size()) {
    for (auto next = static_cast<std::uint32_t>(depth_.size()); next <= lane; ++next) name_lane(next);
    depth_.resize(lane + 1, 0);
  }
  ++depth_[lane];
  add_event('B', lane, name, ns, arguments.empty() ? "" : fmt::format(R"(,"args":{{{}}})", arguments));
}

void Timeline::close_slices(std::uint32_t lane, std::size_t left, std::int64_t ns, std::string_view arguments) {
  for (; depth_[lane] > left; --depth_[lane]) {
    add_event('E', lane, "", ns,
              depth_[lane] > 1 || arguments.empty() ? "" : fmt::format(R"(,"args":{{{}}})", arguments));
  }
}

void Timeline::add_event(char phase, std::uint32_t lane, std::string_view name, std::int64_t ns,
                         std::string_view more) {
  // A record may have been made just before a clock point and appended after it; it must not precede what is written.
  newest_ns_ = std::max(newest_ns_, ns);
  fmt::format_to(std::back_inserter(text_), R"(,{{"ph":"{}","pid":{},"tid":{},"ts":{}.{:03})", phase, rank_, lane,
                 newest_ns_ / 1000, newest_ns_ % 1000);
  if (!name.empty()) fmt::format_to(std::back_inserter(text_), R"(,"name":{})", json_text(name));
  text_ += more;
  text_ += "}\n";
}

void Timeline::name_lane(std::uint32_t lane) {
  const std::string name = lane == kStepLane ? "steps" : lane == 1 ? "operations" : fmt::format("operations {}", lane);
  fmt::format_to(std::back_inserter(text_),
                 R"(,{{"name":"thread_name","ph":"M","pid":{0},"tid":{1},"args":{{"name":"{2}"}}}}
,{{"name":"thread_sort_index","ph":"M","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}}
)",
                 rank_, lane, name);
}

// --- merging

namespace {

struct Part {
  std::vector<nlohmann::json> events;
  std::string boot_id;
  std::int64_t system_minus_steady_ns = 0;
  int rank = 0;
};

Part read_part(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw_errno("read the timeline " + path);
  Part part;
  bool has_clock = false;
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find('{');
    if (begin == std::string::npos) continue;
    auto event = nlohmann::json::parse(line.substr(begin), nullptr, false);
    if (!event.is_object()) continue;  // cut off
    if (event.value("name", "") == "lockstep_clock") {
      part.boot_id = event["args"].value("boot_id", "");
      part.system_minus_steady_ns = event["args"].value("system_minus_steady_ns", std::int64_t{0});
      part.rank = event.value("pid", 0);
      has_clock = true;
    }
    part.events.push_back(std::move(event));
  }
  if (!has_clock) throw Error(ErrorCode::invalid_argument, fmt::format("{} is no timeline of Lockstep", path));
  return part;
}

}  // namespace

void merge_timelines(const std::vector<std::string>& paths, const std::string& out) {
  std::vector<Part> parts;
  for (const std::string& path : paths) parts.push_back(read_part(path));
  std::ofstream file(out);
  if (!file) throw_errno("create the timeline " + out);
  std::map<std::string, std::int64_t> offsets;  // by boot: one for all ranks of a host, so that their order stays exact
  std::set<int> processes;
  const char* separator = "[\n";
  for (Part& part : parts) {
    const std::int64_t offset = offsets.emplace(part.boot_id, part.system_minus_steady_ns).first->second;
    const double shift_us = static_cast<double>(offset - parts.front().system_minus_steady_ns) / 1000;
    int process = part.rank;
    while (!processes.insert(process).second) process += 1'000'000;  // another timeline of the same rank
    for (nlohmann::json& event : part.events) {
      event["pid"] = process;
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift_us;
      file << separator << event.dump();
      separator = ",\n";
    }
  }
  file << (parts.empty() ? "[\n]\n" : "\n]\n");
  if (!file.flush()) throw_errno("write the timeline " + out);
}

}  // namespace lockstep::trace
