#include "rendezvous/starter.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "lockstep/error.hpp"
#include "lockstep/options.hpp"

namespace lockstep::rendezvous {
namespace {

using Variables = std::map<std::string, std::string>;

// The process's environment, cleared of all launchers, for the time of a test.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const std::string name = text.substr(0, text.find('='));
      for (const char* prefix : {"LOCKSTEP_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE",
                                 "LOCAL_", "MASTER_"}) {
        if (name.starts_with(prefix)) before_[name] = text.substr(name.size() + 1);
      }
    }
    for (const auto& [name, value] : before_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~Environment() {
    for (const auto& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }

 private:
  Variables before_;
  std::vector<std::string> set_;
};

std::string text_of(const std::optional<Started>& started) {
  if (!started) return "nobody";
  const Place& place = started->place;
  return fmt::format("{}: {}/{} here {}/{}, job '{}', channel {}", started->by, place.rank, place.size,
                     place.local_rank, place.local_size, place.job, static_cast<int>(started->channel));
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1807745025"},    {"PMIX_RANK", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "1"},         {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "7"},
                          {"SLURM_STEP_ID", "2"},        {"SLURM_NTASKS", "8"},  {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NODEID", "0"}};
const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "1"}};

Variables both(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

TEST(Starter, IsReadFromTheEnvironment) {
  const Variables lockstep = {{"LOCKSTEP_RANK", "1"}, {"LOCKSTEP_SIZE", "2"}, {"LOCKSTEP_JOB", "j"}};
  const std::vector<std::pair<Variables, const char*>> cases = {
      {{}, "nobody"},
      {lockstep, "lockstep run: 1/2 here 1/2, job 'j', channel 0"},
      {kTorchrun, "torchrun: 1/2 here 1/2, job 'none localhost:29500 attempt 1', channel 2"},
      {kOpenMpi, "Open MPI: 3/4 here 1/2, job '1807745025', channel 1"},
      {kSlurm, "Slurm: 1/2 here 1/2, job '7.2', channel 2"},
      {both(kSlurm, {{"PMIX_NAMESPACE", "slurm.pmix.7.2"}}), "Slurm: 1/2 here 1/2, job '7.2', channel 1"},
      // A batch script is no task, whatever Slurm tells it of the tasks to come.
      {{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}}, "nobody"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}},
       "torch.distributed: 1/2 here 1/2, job ' a:5 attempt 0', channel 2"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "nobody"},
      // The inner launcher counts.
      {both(kSlurm, kTorchrun), "torchrun: 1/2 here 1/2, job 'none localhost:29500 attempt 1', channel 2"},
      {both(kSlurm, kOpenMpi), "Open MPI: 3/4 here 1/2, job '1807745025', channel 1"},
      {both(both(kSlurm, kTorchrun), lockstep), "lockstep run: 1/2 here 1/2, job 'j', channel 0"},
  };
  for (const auto& [variables, expected] : cases) {
    const Environment environment(variables);
    EXPECT_EQ(text_of(find_starter()), expected);
  }
}

TEST(Starter, TheProxyOfHydraNamesTheJob) {
  int ends[2] = {};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd proxy(ends[0]);
  const Fd rank(ends[1]);
  Environment environment({{"PMI_RANK", "0"},
                           {"PMI_SIZE", "2"},
                           {"MPI_LOCALRANKID", "0"},
                           {"MPI_LOCALNRANKS", "2"},
                           {"PMI_FD", std::to_string(rank.get())}});
  EXPECT_EQ(text_of(find_starter()), fmt::format("MPICH: 0/2 here 0/2, job 'proxy {}', channel 2", getpid()));
  environment.set("PMI_FD", "99999");
  EXPECT_THROW(find_starter(), Error);
  environment.set("LOCKSTEP_JOB", "mine");
  EXPECT_EQ(text_of(find_starter()), "MPICH: 0/2 here 0/2, job 'mine', channel 2");
}

TEST(Starter, HalfAnEnvironmentIsRefusedByName) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    Variables variables = kOpenMpi;
    variables.erase(name);
    const Environment environment(variables);
    try {
      find_starter();
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
  const Environment environment(both({{"SLURM_PROCID", "one"}}, kSlurm));
  EXPECT_THROW(find_starter(), Error);
}

TEST(Starter, RanksOfHydraOnSeveralHostsShareANameThatFollowsFromTheirMeeting) {
  Environment environment({{"PMI_RANK", "2"},
                           {"PMI_SIZE", "4"},
                           {"MPI_LOCALRANKID", "0"},
                           {"MPI_LOCALNRANKS", "2"},
                           {"LOCKSTEP_MEETING", "node1:7000"}});
  EXPECT_EQ(find_starter()->place.job, "meeting node1:7000 :");  // whatever PMI_FD is, which differs from host to host
}

TEST(Starter, SlurmTellsWhereTheFirstNodeIs) {
  EXPECT_EQ(first_node("node7"), "node7");
  EXPECT_EQ(first_node("node7,other[1-3]"), "node7");
  EXPECT_EQ(first_node("node[01-03,7],other"), "node01");
  EXPECT_EQ(first_node("rack[2,5]-a,x"), "rack2-a");
  for (const char* list : {"node[", "node[]", "node[1"}) EXPECT_THROW(first_node(list), Error) << list;
  Environment environment({{"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_JOB_ID", "12"},
                           {"SLURM_STEP_ID", "1"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                           {"SLURM_STEP_NODELIST", "node[1-2]"}});
  EXPECT_EQ(find_starter()->place.meeting, "node1:20445");
  environment.set("SLURM_STEP_NUM_NODES", "1");
  EXPECT_EQ(find_starter()->place.meeting, "");
}

TEST(Starter, TasksOnANodeOfSlurm) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("1,2(x2),3", 2), 2);
  for (const char* list : {"", ",", "0", "2(x", "2(x2", "2(x0)", "2(3)", "2;1", "x", "99999999999"}) {
    EXPECT_THROW(tasks_on_node(list, 1), Error) << list;
  }
  EXPECT_THROW(tasks_on_node("2(x3),1", 4), Error);
}

TEST(Starter, OptionsFollowIt) {
  const Environment environment(kOpenMpi);
  const Options options = Options::from_environment();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.local_size, 2);
  EXPECT_TRUE(options.secret.empty());
}

}  // namespace
}  // namespace lockstep::rendezvous
