#include "events.hpp"

#include <chrono>
#include <nlohmann/json.hpp>

namespace lockstep::launcher {

namespace {

using Json = nlohmann::ordered_json;

Json event(const char* name) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return {{"event", name}, {"time", now.count()}};
}

void write(Screen& screen, const Json& object) {
  // Ranks may write any bytes; JSON is UTF-8, so what is not is replaced.
  screen.line({}, object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void add_host(Json& object, const RankOutcome& outcome) {
  if (!outcome.host.empty()) object["host"] = outcome.host;
}

void add_end(Json& object, const RankOutcome& outcome) {
  switch (outcome.state) {
    case RankState::exited:
      object["exit_code"] = outcome.code;
      break;
    case RankState::killed:
      object["signal"] = outcome.code;
      break;
    case RankState::not_started:
      object["errno"] = outcome.code;
      break;
    case RankState::stopped:
      object["stopped"] = true;
      break;
    case RankState::lost:
      object["lost"] = true;
      break;
    case RankState::running:
      break;
  }
}

}  // namespace

void EventLog::started(const std::string& job, int restart, const std::vector<RankOutcome>& ranks) {
  Json object = event("started");
  object["job"] = job;
  object["restart"] = restart;
  for (const RankOutcome& rank : ranks) {
    Json entry = {{"rank", rank.rank}, {"pid", rank.pid}};
    add_host(entry, rank);
    object["ranks"].push_back(entry);
  }
  write(screen_, object);
}

void EventLog::output(int rank, const char* stream, std::string_view line) {
  Json object = event("output");
  object["rank"] = rank;
  object["stream"] = stream;
  object["line"] = line;
  write(screen_, object);
}

void EventLog::rank_ended(const RankOutcome& outcome) {
  Json object = event("rank_ended");
  object["rank"] = outcome.rank;
  add_host(object, outcome);
  object["pid"] = outcome.pid;
  add_end(object, outcome);
  object["told_to_end"] = outcome.told_to_end;
  write(screen_, object);
}

void EventLog::failed(const FailureReport& report) {
  Json object = event("failed");
  object["rank"] = report.cause.rank;
  add_host(object, report.cause);
  object["pid"] = report.cause.pid;
  add_end(object, report.cause);
  object["out_of_memory"] = is_out_of_memory(report);
  object["what"] = what_happened(report);
  object["next_step"] = next_step(report);
  object["last_lines"] = report.last_words;
  write(screen_, object);
}

void EventLog::ended(int exit_code, bool restarts) {
  Json object = event("ended");
  object["exit_code"] = exit_code;
  object["restarts"] = restarts;
  write(screen_, object);
}

}  // namespace lockstep::launcher
