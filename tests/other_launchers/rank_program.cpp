// What the tests start under other launchers: ranks that find each other, add a number and tell the sum.
//
//     rank_program NUMBER              print "rank R of N: sum S", leave, and do the same in a second engine
//     rank_program NUMBER forever      print it, and go on adding until that fails: print "rank R: WHY", exit code 1
//     rank_program NUMBER beside FILE  do it before and after MPI_Init of that MPI library
//     rank_program NUMBER deadlock     the ranks wait for each other
//     rank_program NUMBER without R    rank R never comes to the meeting, and waits for its end
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/lockstep.hpp"

namespace {

float sum_of_all(lockstep::Engine& engine, float number) {
  const lockstep::TensorView tensor{.data = &number, .shape = {1}, .name = "number"};
  engine.all_reduce(tensor, tensor);
  return number;
}

void meet(float number, bool forever) {
  lockstep::Engine engine;
  std::printf("rank %d of %d: sum %g\n", engine.rank(), engine.size(), sum_of_all(engine, number));
  std::fflush(stdout);
  while (forever) sum_of_all(engine, number);
}

void wait_for_each_other() {
  lockstep::Engine engine;
  float number = 0;
  engine.all_reduce({.data = &number, .shape = {1}, .name = engine.rank() == 0 ? "one" : "other"},
                    {.data = &number, .shape = {1}, .name = engine.rank() == 0 ? "one" : "other"});
}

// MPI without its headers, which differ: these two take the same everywhere.
int call_mpi(void* library, const char* function) {
  if (std::string(function) == "MPI_Init") {
    return reinterpret_cast<int (*)(int*, char***)>(::dlsym(library, function))(nullptr, nullptr);
  }
  return reinterpret_cast<int (*)()>(::dlsym(library, function))();
}

int meet_beside_mpi(float number, const char* file) {
  void* library = ::dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw lockstep::Error(lockstep::ErrorCode::system, ::dlerror());
  meet(number, false);
  const int started = call_mpi(library, "MPI_Init");
  meet(number, false);
  return started + call_mpi(library, "MPI_Finalize");
}

}  // namespace

int main(int count, char** arguments) {
  const float number = std::strtof(count > 1 ? arguments[1] : "1", nullptr);
  const std::string mode = count > 2 ? arguments[2] : "";
  int rank = -1;
  try {
    rank = lockstep::Options::from_environment().rank;
    if (mode == "without" && count > 3 && rank == std::atoi(arguments[3])) return ::pause();
    if (mode == "beside" && count > 3) return meet_beside_mpi(number, arguments[3]);
    if (mode == "deadlock") wait_for_each_other();
    meet(number, mode == "forever");
    meet(number, false);
  } catch (const lockstep::Error& error) {
    std::printf("rank %d: %s\n", rank, error.what());
    return error.code() == lockstep::ErrorCode::incompatible ? 76 : 1;
  }
  return 0;
}
