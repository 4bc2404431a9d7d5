// What one record costs: an operation makes three (submitted, matched, done), each of which the recorder hands to the
// flight record and the counters, and to the timeline when that is on. Prints a line for each: what, the nanoseconds
// per record (median of the rounds) and the interval that holds the true median with 95 %.
//
//   record_cost [FOLDER]   FOLDER: where the timeline is written (/dev/shm)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "trace/recorder.hpp"

namespace {

using lockstep::trace::Recorder;
using lockstep::trace::Span;

constexpr int kRounds = 101;
constexpr int kOperations = 2000;  // in a round: fewer than the timeline has room for
constexpr int kRecords = 3;        // of each operation
const std::string kNames[] = {"layer1.weight", "layer1.bias", "encoder.layers.11.attention.output.dense.weight"};

double nanoseconds_per_record(Recorder& recorder) {
  Span span;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kOperations; ++i) {
    recorder.submitted(span, "all-reduce", kNames[i % 3], static_cast<std::uint64_t>(i), 4096, 4);
    recorder.matched(span);
    recorder.done(span);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / (kOperations * kRecords);
}

// As the short cut records: all at once, and without a name.
double nanoseconds_completed(Recorder& recorder) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kOperations; ++i) {
    const auto submitted = lockstep::trace::ticks();
    recorder.completed("all-reduce", static_cast<std::uint64_t>(i), 4096, 4, submitted, 0);
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kOperations;
}

template <class Measure>
void print(const char* what, Recorder& recorder, const Measure& measure) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    rounds.push_back(measure(recorder));
    // The timeline is written ten times a second, by a thread of its own: so much an engine would not record at once.
    if (recorder.timeline().running() && round % 4 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  std::sort(rounds.begin(), rounds.end());
  constexpr int kHalfWidth = 10;  // of 101 ranks around the median: 95 %
  std::printf("%-36s %6.1f ns  (%.1f to %.1f)\n", what, rounds[kRounds / 2], rounds[kRounds / 2 - kHalfWidth],
              rounds[kRounds / 2 + kHalfWidth]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/dev/shm";
  const std::string path = folder + "/record_cost.json";
  Recorder recorder;
  print("flight record and counters", recorder, nanoseconds_per_record);
  print("the same, of the short cut", recorder, nanoseconds_completed);
  recorder.timeline().start(path, 0);
  print("with the timeline", recorder, nanoseconds_per_record);
  recorder.timeline().stop();
  std::remove(lockstep::trace::timeline_path(path, 0).c_str());
}
