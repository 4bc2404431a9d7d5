#include "engine/connect.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "engine/connect_tcp.hpp"
#include "heap/segment.hpp"
#include "lockstep/version.hpp"
#include "negotiation/groups.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/job_secret.hpp"
#include "rendezvous/local_meeting.hpp"
#include "transport/memory/memory_transport.hpp"
#include "transport/shm/shm_transport.hpp"

namespace lockstep::engine {
namespace {

bool on_several_hosts(const Options& options) { return options.local_size != options.size; }

void check_options(const Options& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} makes no sense: ranks go from 0 to size - 1", options.rank, options.size));
  }
  if (options.transport != "" && options.transport != "shm" && options.transport != "tcp") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no transport '{}'; there are: shm, tcp. Correct or unset LOCKSTEP_TRANSPORT.",
                            options.transport));
  }
  if (options.transport == "shm" && on_several_hosts(options)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} is on host {} with {} ranks in all: ranks on several hosts share no memory. "
                            "Unset LOCKSTEP_TRANSPORT=shm.",
                            options.rank, options.size, rendezvous::host_name(), options.local_size));
  }
  for (std::vector<int> ranks : options.groups) negotiation::Groups::check(ranks, options.size);
}

// Whoever has started this process as this rank has a way to the secret, and may know where rank 0 is.
void ask_starter(Options& options) {
  const auto started = rendezvous::find_starter();
  if (!started || started->place.rank != options.rank || started->place.size != options.size) return;
  const auto given = rendezvous::job_secret(
      *started, {.timeout = options.start_timeout, .open_meeting = [&] { return open_meeting(options); }});
  options.secret = given.secret;
  if (!given.meeting.empty()) options.meeting = given.meeting;
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

std::shared_ptr<Core> connect_by_memory(const Options& options, const Hopeless& hopeless) {
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

std::shared_ptr<Core> connect_by_tcp(const Options& options, const Hopeless& hopeless,
                                     const std::shared_ptr<net::Listener>& listener) {
  Connected connected;
  if (on_several_hosts(options)) {
    connected = connect_between_hosts(options, hopeless, listener);
  } else {
    connected.transport = connect_on_host(options, hopeless);
  }
  auto core = std::make_shared<Core>(options, std::move(connected.transport));
  core->keep_roster(std::move(connected.roster));
  core->recorder().flight_record().publish();
  return core;
}

std::shared_ptr<Core> connect(Options options, const Hopeless& hopeless,
                              const std::shared_ptr<net::Listener>& listener = nullptr) {
  check_options(options);
  if (options.size == 1) return std::make_shared<Core>(options, std::move(transport::make_memory_world(1).front()));
  if (options.secret.empty()) ask_starter(options);
  if (!options.epoch) options.epoch = next_epoch();
  const bool by_tcp = options.transport == "tcp" || on_several_hosts(options);
  return by_tcp ? connect_by_tcp(options, hopeless, listener) : connect_by_memory(options, hopeless);
}

// Where the survivors are, and where the first of them will be.
void place_survivors(const Roster& roster, const std::vector<int>& ranks, int self, Options& options) {
  const auto card_of = [&](int rank) -> const rendezvous::Card& {
    return roster.cards[static_cast<std::size_t>(rank)];
  };
  options.meeting = card_of(ranks.front()).again.text();
  options.local_rank = options.local_size = 0;
  for (const int rank : ranks) {
    if (card_of(rank).host != card_of(self).host) continue;
    ++options.local_size;
    options.local_rank += rank < self ? 1 : 0;
  }
}

}  // namespace

std::shared_ptr<Core> connect(Options options) { return connect(std::move(options), {}); }

std::shared_ptr<Core> connect_survivors(Core& failed) {
  return failed.continue_with_survivors([&failed](const Agreement& members, std::uint32_t round) {
    const auto& ranks = members.survivors;
    const int before = failed.options().rank;
    const Roster* roster = failed.roster().get();
    Options options = failed.options();
    options.rank = options.local_rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), before) - ranks.begin());
    options.size = options.local_size = static_cast<int>(ranks.size());
    options.groups.clear();  // of other numbers
    if (roster != nullptr) place_survivors(*roster, ranks, before, options);
    options.epoch = options.epoch.value_or(0) + kGeneration * round;
    const Hopeless hopeless = [&failed, &ranks, before] {
      return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
        return rank != before && failed.transport().health(rank) != transport::Health::alive;
      });
    };
    return connect(options, hopeless, roster != nullptr ? roster->again : nullptr);
  });
}

}  // namespace lockstep::engine
