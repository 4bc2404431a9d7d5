// A rank that starts, adds one number and leaves.
#include "lockstep/lockstep.hpp"
#include "start_rank.hpp"

int main() {
  lockstep::Engine engine;
  float number = 1;
  const lockstep::TensorView tensor{.data = &number, .shape = {1}, .name = "number"};
  engine.all_reduce(tensor, tensor);
  say_time(number);
}
