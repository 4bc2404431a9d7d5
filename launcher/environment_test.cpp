#include "launcher/environment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::launcher {
namespace {

const JobEnvironment kJob{.job_id = "ab12",
                          .secret_fd = 9,
                          .master_address = "127.0.0.1",
                          .master_port = 4711,
                          .threads_per_rank = 3,
                          .columns = 0};

std::string value(const std::vector<std::string>& environment, const std::string& name) {
  const char* found = find_variable(environment, name);
  return found != nullptr ? found : "(not set)";
}

TEST(Environment, tells_a_rank_who_it_is_in_every_dialect) {
  const auto environment = rank_environment({"HOME=/x", "PATH=/bin"}, kJob, place_on_one_machine(1, 4));
  for (const char* prefix : {"LOCKSTEP_", "HOROVOD_"}) {
    EXPECT_EQ(value(environment, std::string(prefix) + "RANK"), "1");
    EXPECT_EQ(value(environment, std::string(prefix) + "SIZE"), "4");
    EXPECT_EQ(value(environment, std::string(prefix) + "LOCAL_RANK"), "1");
    EXPECT_EQ(value(environment, std::string(prefix) + "LOCAL_SIZE"), "4");
    EXPECT_EQ(value(environment, std::string(prefix) + "CROSS_RANK"), "0");
    EXPECT_EQ(value(environment, std::string(prefix) + "CROSS_SIZE"), "1");
  }
  EXPECT_EQ(value(environment, "RANK"), "1");
  EXPECT_EQ(value(environment, "WORLD_SIZE"), "4");
  EXPECT_EQ(value(environment, "LOCAL_RANK"), "1");
  EXPECT_EQ(value(environment, "LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(value(environment, "GROUP_RANK"), "0");
  EXPECT_EQ(value(environment, "MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(value(environment, "MASTER_PORT"), "4711");
  EXPECT_EQ(value(environment, "HOROVOD_GLOO_RENDEZVOUS_ADDR"), "127.0.0.1");
  EXPECT_EQ(value(environment, "HOROVOD_GLOO_RENDEZVOUS_PORT"), "4711");
  EXPECT_FALSE(value(environment, "HOROVOD_HOSTNAME").empty());
  EXPECT_EQ(value(environment, "LOCKSTEP_JOB"), "ab12");
  EXPECT_EQ(value(environment, "LOCKSTEP_SECRET_FD"), "9");
  EXPECT_EQ(value(environment, "HOME"), "/x");
}

TEST(Environment, what_an_outer_job_left_is_replaced_not_doubled) {
  const auto environment = rank_environment({"RANK=7", "LOCKSTEP_RANK=7", "RANKS=8"}, kJob, place_on_one_machine(0, 2));
  EXPECT_EQ(std::count_if(environment.begin(), environment.end(),
                          [](const std::string& entry) { return entry.rfind("RANK=", 0) == 0; }),
            1);
  EXPECT_EQ(value(environment, "RANK"), "0");
  EXPECT_EQ(value(environment, "LOCKSTEP_RANK"), "0");
  EXPECT_EQ(value(environment, "RANKS"), "8");
}

TEST(Environment, ranks_that_share_a_host_preload_the_library) {
  JobEnvironment job = kJob;
  job.preload = "/lib/ours.so";
  const std::vector<std::string> inherited = {"LD_PRELOAD=/lib/users.so"};
  EXPECT_EQ(value(rank_environment(inherited, job, place_on_one_machine(1, 2)), "LD_PRELOAD"),
            "/lib/users.so:/lib/ours.so");
  EXPECT_EQ(value(rank_environment(inherited, job, place_on_one_machine(0, 1)), "LD_PRELOAD"), "/lib/users.so");
  EXPECT_EQ(value(rank_environment(inherited, kJob, place_on_one_machine(0, 2)), "LD_PRELOAD"), "/lib/users.so");
  EXPECT_EQ(value(rank_environment({"LOCKSTEP_PRELOAD=0"}, job, place_on_one_machine(0, 2)), "LD_PRELOAD"),
            "(not set)");
}

TEST(Environment, defaults_give_way_to_the_user) {
  const auto own = rank_environment({"OMP_NUM_THREADS=16", "PYTHONUNBUFFERED="}, kJob, place_on_one_machine(0, 2));
  EXPECT_EQ(value(own, "OMP_NUM_THREADS"), "16");
  EXPECT_EQ(value(own, "PYTHONUNBUFFERED"), "");
  const auto ours = rank_environment({}, kJob, place_on_one_machine(0, 2));
  EXPECT_EQ(value(ours, "OMP_NUM_THREADS"), "3");
  EXPECT_EQ(value(ours, "PYTHONUNBUFFERED"), "1");
  EXPECT_EQ(value(ours, "COLUMNS"), "(not set)");
}

TEST(Environment, does_not_pretend_to_be_mpi) {
  for (const std::string& entry : rank_environment({}, kJob, place_on_one_machine(0, 2))) {
    EXPECT_EQ(entry.rfind("OMPI_", 0), std::string::npos) << entry;
  }
}

TEST(Environment, threads_are_shared_out_but_never_none) {
  EXPECT_EQ(threads_per_rank(1), usable_cores());
  EXPECT_EQ(threads_per_rank(100000), 1);
}

}  // namespace
}  // namespace lockstep::launcher
