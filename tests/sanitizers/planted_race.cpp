// Shows that the thread sanitizer sees what happens in the shared memory: a rank that touches its tensor while the
// peers reduce it must be reported. Built with the tsan preset only; the test passes when the report is there.
#include "engine/world_test.hpp"

int main() {
  using namespace lockstep::engine;
  run_world(Over::shm, 2, [](Core& core) {
    constexpr std::size_t kElements = 100'000;
    auto* values = static_cast<float*>(core.transport().shared()->allocate(kElements * sizeof(float)));
    const auto operation = core.submit(all_reduce(values, kElements), true);
    values[kElements / 2] = 1.0F;  // the race: the operation is still under way
    core.wait(*operation);
  });
  return 0;
}
