// A rank of benchmarks/strangers.py: steps of some 10 ms of work and an all-reduce of 1 MB, for so many seconds. Rank 0
// prints the time at which each step ended, by the monotonic clock in seconds, and how long it took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::int64_t kElements = 1 << 18;
constexpr Seconds kWork(0.010);

void add_up(long additions) {
  volatile double sum = 0;
  for (long i = 0; i < additions; ++i) sum = sum + 1;
}

// What takes that long here. A step is so much work, not so much time: who takes the core away makes it longer.
long additions_in(Seconds time) {
  constexpr long kTried = 1'000'000;
  Seconds least = Seconds::max();
  for (int turn = 0; turn < 20; ++turn) {
    const auto began = Clock::now();
    add_up(kTried);
    least = std::min<Seconds>(least, Clock::now() - began);
  }
  return static_cast<long>(kTried * (time / least));
}

bool all_go_on(lockstep::Engine& engine, bool wish) {
  float go_on = wish ? 1.0F : 0.0F;
  const lockstep::TensorView flag{.data = &go_on, .shape = {1}, .name = "go on"};
  engine.all_reduce(flag, flag, {.op = lockstep::ReduceOp::min});
  return go_on > 0;
}

}  // namespace

int main(int, char** arguments) {
  const Seconds time(std::strtod(arguments[1], nullptr));
  lockstep::Engine engine;
  std::vector<float> values(kElements);
  const lockstep::TensorView tensor{.data = values.data(), .shape = {kElements}, .name = "gradient"};
  const long work = additions_in(kWork);
  const auto end = Clock::now() + time;
  while (all_go_on(engine, Clock::now() < end)) {
    const auto began = Clock::now();
    add_up(work);
    values.assign(values.size(), 1.0F);
    engine.all_reduce(tensor, tensor);
    if (values.front() != static_cast<float>(engine.size())) throw std::runtime_error("a wrong sum");
    const auto ended = Clock::now();
    if (engine.rank() != 0) continue;
    std::printf("%.6f %.6f\n", Seconds(ended.time_since_epoch()).count(), Seconds(ended - began).count());
    std::fflush(stdout);
  }
}
