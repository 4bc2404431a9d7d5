#include "engine/connect.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "heap/segment.hpp"
#include "lockstep/version.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/job_secret.hpp"
#include "rendezvous/local_meeting.hpp"
#include "transport/memory/memory_transport.hpp"
#include "transport/shm/shm_transport.hpp"

namespace lockstep::engine {
namespace {

void check_options(const Options& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} makes no sense: ranks go from 0 to size - 1", options.rank, options.size));
  }
  if (options.local_size != options.size || options.local_rank != options.rank) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("rank {} of {} is on host {} with {} ranks, of which it has number {}: all ranks must be on "
                    "one host in this version. Start them there (lockstep run -np {}, mpirun --host localhost:{}, "
                    "srun --nodes=1, torchrun --nnodes=1).",
                    options.rank, options.size, rendezvous::host_name(), options.local_size, options.local_rank,
                    options.size, options.size));
  }
}

// Whoever has started this process as this rank has a way to the secret.
std::string secret_of_starter(const Options& options) {
  const auto started = rendezvous::find_starter();
  if (!started || started->place.rank != options.rank || started->place.size != options.size) return {};
  return rendezvous::job_secret(*started, options.start_timeout);
}

// Address space, not memory: pages come when they are touched. All of the machine's memory fits into each rank's part.
std::size_t default_heap_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::uint32_t next_epoch() {
  static std::atomic<std::uint32_t> engines{0};
  return engines++;
}

// Epochs that a process counts up itself stay below this; each generation of survivors begins with a new multiple.
constexpr std::uint32_t kGeneration = 1U << 16;

using Hopeless = std::function<bool()>;

std::shared_ptr<Core> connect(Options options, const Hopeless& hopeless) {
  check_options(options);
  if (options.size == 1) return std::make_shared<Core>(options, std::move(transport::make_memory_world(1).front()));

  if (options.secret.empty()) options.secret = secret_of_starter(options);
  if (!options.epoch) options.epoch = next_epoch();
  const std::size_t heap_bytes = options.heap_bytes != 0 ? options.heap_bytes : default_heap_bytes();
  rendezvous::LocalMeeting meeting(
      {.rank = options.rank,
       .size = options.size,
       .epoch = *options.epoch,
       .job = options.job,
       .secret = options.secret,
       .version = version(),
       .timeout = options.start_timeout,
       .hopeless = hopeless},
      [&] { return heap::Segment::create(transport::shm_segment_shape(options.size, heap_bytes)); });
  auto segment = heap::Segment::attach(meeting.descriptor());
  auto core = std::make_shared<Core>(options, transport::make_shm_transport(std::move(segment), options.rank));
  core->recorder().flight_record().publish();
  // From here on the shared memory tells who is alive; before, the open connections of the meeting did.
  meeting.ready();
  return core;
}

}  // namespace

std::shared_ptr<Core> connect(Options options) { return connect(std::move(options), {}); }

std::shared_ptr<Core> connect_survivors(Core& failed) {
  return failed.continue_with_survivors([&failed](const Agreement& members, std::uint32_t round) {
    const auto& ranks = members.survivors;
    const auto self = std::find(ranks.begin(), ranks.end(), failed.options().rank);
    Options options = failed.options();
    options.rank = options.local_rank = static_cast<int>(self - ranks.begin());
    options.size = options.local_size = static_cast<int>(ranks.size());
    options.epoch = options.epoch.value_or(0) + kGeneration * round;
    return connect(options, [&failed, &ranks] {
      return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
        return rank != failed.options().rank && failed.transport().health(rank) != transport::Health::alive;
      });
    });
  });
}

}  // namespace lockstep::engine
