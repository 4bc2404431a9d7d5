// A rank that reduces for some seconds and checks every result: healthy_worker SECONDS [RANK ALONE_SECONDS].
// With the second pair, that rank first works by itself for so long, while the others wait for it.
// healthy_worker idle SECONDS measures an engine that has nothing to do.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::duration<double> seconds_from(const char* text) {
  return std::chrono::duration<double>(std::strtod(text, nullptr));
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void stay_idle(lockstep::Engine& engine, std::chrono::duration<double> time) {
  engine.barrier();
  const double before = processor_seconds();
  std::this_thread::sleep_for(time);
  const double used = processor_seconds() - before;
  engine.barrier();
  std::printf("used %.4f percent\n", 100 * used / time.count());
}

// Work of the program's own, as an evaluation or a compilation would be.
void work_alone(std::chrono::duration<double> time) {
  const auto end = Clock::now() + time;
  for (volatile double sum = 0; Clock::now() < end;) sum = sum + 1;
}

void reduce_and_check(lockstep::Engine& engine, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements), static_cast<float>(engine.rank() + 1));
  const lockstep::TensorView tensor{.data = values.data(), .shape = {elements}, .name = "values"};
  engine.all_reduce(tensor, tensor);
  const auto expected = static_cast<float>(engine.size() * (engine.size() + 1) / 2);
  if (values.front() != expected || values.back() != expected) throw std::runtime_error("a wrong sum");
}

long reduce_for(lockstep::Engine& engine, std::chrono::duration<double> time) {
  const auto end = Clock::now() + time;
  long rounds = 0;
  for (float go_on = 1; go_on > 0; ++rounds) {
    reduce_and_check(engine, 100);
    reduce_and_check(engine, 100'000);
    go_on = Clock::now() < end ? 1.0F : 0.0F;
    const lockstep::TensorView flag{.data = &go_on, .shape = {1}, .name = "go on"};
    engine.all_reduce(flag, flag, {.op = lockstep::ReduceOp::min});
  }
  return rounds;
}

}  // namespace

int main(int count, char** arguments) try {
  lockstep::Engine engine;
  std::printf("started %d\n", ::getpid());
  std::fflush(stdout);
  if (std::string(arguments[1]) == "idle") {
    stay_idle(engine, seconds_from(arguments[2]));
    return 0;
  }
  if (count > 3 && engine.rank() == std::atoi(arguments[2])) work_alone(seconds_from(arguments[3]));
  std::printf("fine after %ld rounds\n", reduce_for(engine, seconds_from(arguments[1])));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
