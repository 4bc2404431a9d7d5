// hosts_keeper: the part of `tools/hosts` that makes processes. It is called by tests/hosts/host_set.py only:
//
//   hosts_keeper keep NAME COUNT RTT_NANOSECONDS BITS_PER_SECOND OWNER
//   hosts_keeper run FIRST_PROCESS_OF_HOST COMMAND...
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "keeper.hpp"

namespace {

using namespace lockstep::hosts;

int dispatch(const std::vector<std::string>& words) {
  if (words.size() == 6 && words[0] == "keep") {
    const std::chrono::nanoseconds round_trip(std::stoll(words[3]));
    keep({.name = words[1],
          .count = std::stoi(words[2]),
          .relayed = round_trip.count() > 0,
          .shape = {.delay = (round_trip + std::chrono::nanoseconds(1)) / 2, .bits_per_second = std::stoll(words[4])},
          .owner = std::stoi(words[5])});
    return 0;
  }
  if (words.size() >= 3 && words[0] == "run") {
    return run_in_host(std::stoi(words[1]), std::vector<std::string>(words.begin() + 2, words.end()));
  }
  std::fputs("hosts_keeper is called by tools/hosts\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return dispatch(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
