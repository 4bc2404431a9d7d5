// A rank whose sums depend on the order of the additions, while a test does something to the network:
//
//     host_worker ELEMENTS SECONDS    reduces for so long, and compares each result with the first: "fine ..."
//     host_worker ELEMENTS forever    reduces until that fails: "lost AT WHY", and then once more: "again AT WHY"
//     host_worker ELEMENTS once:FILE  the last rank gives the others a tensor once FILE is there, and ends: "fine ..."
//
// It first prints "ready AT HASH", of its first result. AT is the time by the monotonic clock in seconds.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void say(const std::string& words) {
  std::printf("%s\n", words.c_str());
  std::fflush(stdout);
}

std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const float value : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return hash;
}

class Reducer {
 public:
  Reducer(lockstep::Engine& engine, std::size_t elements) : engine_(engine), input_(elements), output_(elements) {
    for (std::size_t i = 0; i < elements; ++i)
      input_[i] = 1.0F / static_cast<float>(1 + i + static_cast<std::size_t>(engine.rank()) * 7919);
    reduce();
    first_ = output_;
  }

  const std::vector<float>& first() const { return first_; }

  void reduce() {
    const auto began = Clock::now();
    engine_.all_reduce(view(input_), view(output_));
    longest_ = std::max(longest_, std::chrono::duration<double>(Clock::now() - began).count());
    if (!first_.empty() && std::memcmp(output_.data(), first_.data(), output_.size() * sizeof(float)) != 0)
      throw std::runtime_error("other bits than the first time");
  }

  void reduce_for(double seconds) {
    const double end = now() + seconds;
    long rounds = 0;
    longest_ = 0;
    for (float go_on = 1; go_on > 0; ++rounds) {
      reduce();
      go_on = now() < end ? 1.0F : 0.0F;
      const lockstep::TensorView flag{.data = &go_on, .shape = {1}, .name = "go on"};
      engine_.all_reduce(flag, flag, {.op = lockstep::ReduceOp::min});
    }
    say("fine after " + std::to_string(rounds) + " rounds, the longest took " + std::to_string(longest_) + " s");
  }

  void reduce_until_lost() {
    for (const char* word : {"lost", "again"}) {
      try {
        for (;; std::this_thread::sleep_for(std::chrono::milliseconds(5))) reduce();
      } catch (const lockstep::Error& error) {
        say(std::string(word) + " " + std::to_string(now()) + " " + error.what());
      }
    }
  }

  void hear_last_words(const std::string& file) {
    const int last = engine_.size() - 1;
    engine_.barrier();
    while (engine_.rank() == last && ::access(file.c_str(), F_OK) != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine_.broadcast(view(output_), last);
    say("fine after the last words");
  }

 private:
  static lockstep::TensorView view(std::vector<float>& values) {
    return {.data = values.data(), .shape = {static_cast<std::int64_t>(values.size())}, .name = "gradient"};
  }

  lockstep::Engine& engine_;
  std::vector<float> input_, output_, first_;
  double longest_ = 0;
};

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) throw std::runtime_error("host_worker ELEMENTS SECONDS|forever|once:FILE");
  lockstep::Engine engine;
  Reducer reducer(engine, std::strtoul(arguments[1], nullptr, 10));
  say("ready " + std::to_string(now()) + " " + std::to_string(hash_of(reducer.first())));
  const std::string how_long = arguments[2];
  if (how_long == "forever") {
    reducer.reduce_until_lost();
    return 1;
  }
  if (how_long.starts_with("once:")) {
    reducer.hear_last_words(how_long.substr(5));
    return 0;
  }
  reducer.reduce_for(std::strtod(how_long.c_str(), nullptr));
  return 0;
} catch (const std::exception& error) {
  say("failed " + std::to_string(now()) + " " + error.what());
  return 1;
}
