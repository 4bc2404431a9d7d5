#include "rendezvous/starter.hpp"

#include <fmt/core.h>
#include <sys/socket.h>

#include <charconv>

#include "base/environment.hpp"
#include "lockstep/error.hpp"

namespace lockstep::rendezvous {
namespace {

bool has(const char* name) { return text_from(name).has_value(); }

int count(const char* name, int least) {
  if (auto number = number_from<int>(name, least)) return *number;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is not set, though other variables of the same launcher are. Start the program through "
                          "that launcher, or unset those too.",
                          name));
}

std::optional<Place> by_lockstep() {
  if (has("LOCKSTEP_RANK") != has("LOCKSTEP_SIZE")) {
    throw Error(
        ErrorCode::invalid_argument,
        "only one of LOCKSTEP_RANK and LOCKSTEP_SIZE is set. Start the program with `lockstep run`, or unset both.");
  }
  if (!has("LOCKSTEP_RANK")) return std::nullopt;
  const int rank = count("LOCKSTEP_RANK", 0);
  const int size = count("LOCKSTEP_SIZE", 1);
  return Place{.rank = rank,
               .size = size,
               .local_rank = number_from<int>("LOCKSTEP_LOCAL_RANK", 0).value_or(rank),
               .local_size = number_from<int>("LOCKSTEP_LOCAL_SIZE", 1).value_or(size),
               .job = {}};
}

Place by_torch_variables() {
  const int rank = count("RANK", 0);
  const int size = count("WORLD_SIZE", 1);
  return {.rank = rank,
          .size = size,
          .local_rank = number_from<int>("LOCAL_RANK", 0).value_or(rank),
          .local_size = number_from<int>("LOCAL_WORLD_SIZE", 1).value_or(size),
          // The name of the run may be anything, also the same for two jobs; the port of their stores is not. A worker
          // of the attempt before may not be gone yet.
          .job = fmt::format("{} {}:{} attempt {}", text_from("TORCHELASTIC_RUN_ID").value_or(""),
                             text_from("MASTER_ADDR").value_or(""), text_from("MASTER_PORT").value_or(""),
                             text_from("TORCHELASTIC_RESTART_COUNT").value_or("0"))};
}

std::optional<Place> by_torchrun() {
  if (!has("TORCHELASTIC_RUN_ID")) return std::nullopt;
  return by_torch_variables();
}

std::optional<Place> by_hand_for_torch() {
  if (!has("RANK") || !has("WORLD_SIZE") || !has("MASTER_ADDR") || !has("MASTER_PORT")) return std::nullopt;
  return by_torch_variables();
}

std::optional<Place> by_open_mpi() {
  if (!has("OMPI_COMM_WORLD_RANK") || !has("PMIX_NAMESPACE")) return std::nullopt;
  return Place{.rank = count("OMPI_COMM_WORLD_RANK", 0),
               .size = count("OMPI_COMM_WORLD_SIZE", 1),
               .local_rank = count("OMPI_COMM_WORLD_LOCAL_RANK", 0),
               .local_size = count("OMPI_COMM_WORLD_LOCAL_SIZE", 1),
               .job = *text_from("PMIX_NAMESPACE")};
}

// The process of Hydra that starts the ranks of this host holds the other end of PMI_FD in all of them. We say nothing
// on that connection: a process that has used it must also take its leave there, or Hydra ends the job, and once it
// has, a later MPI_Init in it fails.
pid_t hydra_proxy() {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  const int fd = count("PMI_FD", 0);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("descriptor {} (PMI_FD) does not lead to the mpiexec that started this process. Likely cause: "
                    "the program was started through something that closes inherited descriptors. Start it "
                    "directly with mpiexec, or name the job yourself with LOCKSTEP_JOB.",
                    fd));
  }
  return credentials.pid;
}

// On several hosts there is such a process on each, and what all ranks have in common is where they meet.
std::string hydra_job(int size, int local_size) {
  if (has("LOCKSTEP_JOB")) return {};
  if (size == local_size) return fmt::format("proxy {}", hydra_proxy());
  return fmt::format("meeting {} {}:{}", text_from("LOCKSTEP_MEETING").value_or(""),
                     text_from("MASTER_ADDR").value_or(""), text_from("MASTER_PORT").value_or(""));
}

// Slurm's own PMI sets PMI_RANK as well; only Hydra tells the number of ranks on this host.
std::optional<Place> by_hydra() {
  if (!has("PMI_RANK") || !has("MPI_LOCALNRANKS")) return std::nullopt;
  const int size = count("PMI_SIZE", 1);
  const int local_size = count("MPI_LOCALNRANKS", 1);
  return Place{.rank = count("PMI_RANK", 0),
               .size = size,
               .local_rank = count("MPI_LOCALRANKID", 0),
               .local_size = local_size,
               .job = hydra_job(size, local_size)};
}

// Slurm puts the first task on the first node. Nobody knows which ports are free there: one follows from job and step,
// so that jobs which share a node seldom want the same.
std::string slurm_meeting() {
  constexpr std::uint64_t kFirst = 20'000, kPorts = 10'000;  // below those that the system gives away
  const auto nodes = text_from("SLURM_STEP_NODELIST");
  const auto job = number_from<std::uint64_t>("SLURM_JOB_ID", 0);
  const auto step = number_from<std::uint64_t>("SLURM_STEP_ID", 0);
  if (!nodes || !job || !step) return {};
  return fmt::format("{}:{}", first_node(*nodes), kFirst + (*job * 37 + *step) % kPorts);
}

// A batch script has SLURM_PROCID and SLURM_NTASKS too, but is no task of a step.
std::optional<Place> by_slurm() {
  if (!has("SLURM_PROCID") || !has("SLURM_STEP_ID")) return std::nullopt;
  const int nodes = number_from<int>("SLURM_STEP_NUM_NODES", 1).value_or(1);
  const int size = count("SLURM_STEP_NUM_TASKS", 1);
  return Place{.rank = count("SLURM_PROCID", 0),
               .size = size,
               .local_rank = count("SLURM_LOCALID", 0),
               .local_size = nodes == 1 ? size
                                        : tasks_on_node(text_from("SLURM_STEP_TASKS_PER_NODE").value_or(""),
                                                        count("SLURM_NODEID", 0)),
               .job = fmt::format("{}.{}", text_from("SLURM_JOB_ID").value_or(""), *text_from("SLURM_STEP_ID")),
               .meeting = nodes == 1 ? std::string() : slurm_meeting()};
}

struct Row {
  const char* name;
  Channel channel;
  std::optional<Place> (*place)();
};

// The first that recognises the environment counts. Launchers run inside each other, and their variables are inherited:
// the one that is started inside the others stands above them.
constexpr Row kStarters[] = {
    {"lockstep run", Channel::inherited, by_lockstep},
    {"torchrun", Channel::credentials, by_torchrun},
    {"Open MPI", Channel::pmix, by_open_mpi},
    {"MPICH", Channel::credentials, by_hydra},
    {"Slurm", Channel::pmix, by_slurm},
    {"torch.distributed", Channel::credentials, by_hand_for_torch},
};

}  // namespace

int tasks_on_node(const std::string& list, int node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  for (int passed = 0; at < end;) {
    int tasks = 0;
    int repeated = 1;
    auto read = std::from_chars(at, end, tasks);
    if (read.ec == std::errc{} && end - read.ptr > 2 && read.ptr[0] == '(' && read.ptr[1] == 'x') {
      read = std::from_chars(read.ptr + 2, end, repeated);
      if (read.ptr == end || *read.ptr++ != ')') break;
    }
    if (read.ec != std::errc{} || tasks < 1 || repeated < 1) break;
    if (node - passed < repeated) return tasks;
    passed += repeated;
    if (read.ptr == end || *read.ptr != ',') break;
    at = read.ptr + 1;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("SLURM_STEP_TASKS_PER_NODE={} does not tell how many tasks are on node {}", list, node));
}

std::string first_node(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == list.npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of("-,]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (end == list.npos || close == list.npos || end == bracket + 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("SLURM_STEP_NODELIST={} does not tell the first node. Name where rank 0 is with "
                            "LOCKSTEP_MEETING=host:port, for all ranks alike.",
                            list));
  }
  const std::size_t rest = list.find_first_of(",", close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, rest == list.npos ? list.npos : rest - close - 1);
}

std::optional<Started> find_starter() {
  for (const Row& row : kStarters) {
    auto place = row.place();
    if (!place) continue;
    if (auto job = text_from("LOCKSTEP_JOB")) place->job = *job;
    // Slurm has a PMIx server for the step only with --mpi=pmix.
    const bool unserved = row.channel == Channel::pmix && !has("PMIX_NAMESPACE");
    return Started{
        .by = row.name, .channel = unserved ? Channel::credentials : row.channel, .place = std::move(*place)};
  }
  return std::nullopt;
}

}  // namespace lockstep::rendezvous
