#include "base/cpu.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(Cpu, CoresOfAJobAreThoseOfItsStarterToo) {
  const int all = usable_cores();
  const pid_t bound = ::fork();
  if (bound == 0) {
    cpu_set_t cores, first;
    ::sched_getaffinity(0, sizeof cores, &cores);
    CPU_ZERO(&first);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++core) {
      if (CPU_ISSET(core, &cores)) CPU_SET(core, &first);
    }
    ::sched_setaffinity(0, sizeof first, &first);
    ::_exit(usable_cores() == 1 && usable_cores_of_job() == all ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(bound, &status, 0), bound);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep
