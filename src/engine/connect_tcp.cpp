#include "engine/connect_tcp.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "lockstep/version.hpp"
#include "net/proof.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/local_meeting.hpp"
#include "transport/tcp/tcp_transport.hpp"

namespace lockstep::engine {
namespace {

using net::Address;

net::Membership membership(const Options& options, const std::string& secret) {
  return {.secret = secret,
          .job = net::job_tag(options.job),
          .epoch = options.epoch.value_or(0),
          .rank = static_cast<std::uint32_t>(options.rank),
          .size = static_cast<std::uint32_t>(options.size),
          .release = version(),
          .host = rendezvous::host_name()};
}

transport::TcpOptions tcp_options(const Options& options, const std::string& secret, const Address& listen) {
  return {.self = membership(options, secret), .listen = listen, .encrypt_data = options.encrypt_data};
}

// A memory file that rank 0 makes and all ranks of the host get: the secret of this world, which the name of a job is
// not, and the address of each rank.
class Book {
 public:
  static Fd make(int ranks) {
    Fd file(::memfd_create("lockstep-book", MFD_CLOEXEC));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes(ranks))) != 0) throw_errno("make a memory file");
    const auto secret = net::random_nonce();
    if (::pwrite(file.get(), secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
      throw_errno("write into a memory file");
    return file;
  }

  explicit Book(const Fd& file) : file_(file) {}

  std::string secret() const { return read(0, sizeof(net::Digest)); }

  void enter(int rank, const Address& address) const {
    const std::string text = address.text();
    if (::pwrite(file_.get(), text.data(), text.size(), at(rank)) != static_cast<ssize_t>(text.size()))
      throw_errno("write into a memory file");
  }

  std::vector<Address> addresses(int ranks) const {
    std::vector<Address> all;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto address = Address::parse(read(at(rank), kEntryBytes).c_str());
      if (!address) throw Error(ErrorCode::unavailable, fmt::format("lost rank {} while starting", rank));
      all.push_back(*address);
    }
    return all;
  }

 private:
  static constexpr std::size_t kEntryBytes = 64;

  static off_t at(int rank) {
    return static_cast<off_t>(sizeof(net::Digest) + static_cast<std::size_t>(rank) * kEntryBytes);
  }
  static std::size_t bytes(int ranks) { return static_cast<std::size_t>(at(ranks)); }

  std::string read(off_t from, std::size_t bytes) const {
    std::string text(bytes, '\0');
    if (::pread(file_.get(), text.data(), bytes, from) != static_cast<ssize_t>(bytes))
      throw_errno("read a memory file");
    return text;
  }

  const Fd& file_;
};

// What this process listens with as rank 0: an engine that it starts later meets at the same address.
std::shared_ptr<net::Listener> listener_at(const Address& address) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<net::Listener>> listeners;
  const std::lock_guard lock(mutex);
  for (const auto& listener : listeners) {
    if (listener->address() == address) return listener;
  }
  try {
    return listeners.emplace_back(std::make_shared<net::Listener>(address));
  } catch (const Error& error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("rank 0 cannot listen for the other ranks: {}. Likely cause: another program has the port "
                            "(that after MASTER_PORT), or the address (MASTER_ADDR) is not one of this host. Name "
                            "another with LOCKSTEP_MEETING=host:port, for all ranks alike.",
                            error.what()));
  }
}

// A host's own name means loopback there where its file of hosts says so, as Debian's does (127.0.1.1), and the host
// everywhere else.
Address meeting_of(const Options& options) {
  const Address meeting = Address::resolve(options.meeting);
  const bool by_name = !Address::parse(options.meeting) && !options.meeting.starts_with("localhost");
  if (!meeting.is_loopback() || !by_name) return meeting;
  const Address own = options.interface.empty() ? Address::outward() : Address::of_interface(options.interface);
  return own.with_port(meeting.port());
}

Address own_address(const Options& options, const Address& meeting) {
  if (!options.interface.empty()) return Address::of_interface(options.interface);
  return options.rank == 0 ? meeting.with_port(0) : Address::towards(meeting);
}

[[noreturn]] void refuse_without_meeting(const Options& options) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("rank {} of {} is on host {} with {} ranks in all, so there are several hosts, and nobody has "
                  "told where rank 0 is. Set MASTER_ADDR and MASTER_PORT, or LOCKSTEP_MEETING=host:port, for "
                  "all ranks alike.",
                  options.rank, options.size, rendezvous::host_name(), options.local_size));
}

void check_secret(const Options& options) {
  if (options.secret.size() == sizeof(net::Digest)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("ranks on several hosts need the job's secret of 32 bytes, got {}. Make a file that only you "
                          "can read, (umask 077; head -c 32 /dev/urandom > FILE), put it on all hosts, and set "
                          "LOCKSTEP_SECRET_FILE to its path for all ranks.",
                          options.secret.size()));
}

std::unique_ptr<transport::Transport> connect_doors(transport::TcpDoor door, const std::vector<Address>& addresses,
                                                    net::Clock::time_point deadline, std::vector<int> hosts = {}) {
  try {
    return transport::TcpDoor::connect(std::move(door), addresses, deadline, std::move(hosts));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::incompatible) throw;
    throw Error(ErrorCode::unavailable, error.what());  // whatever kept them apart, the world is not there
  }
}

}  // namespace

std::unique_ptr<transport::Transport> connect_on_host(const Options& options, const std::function<bool()>& hopeless) {
  const auto deadline = net::Clock::now() + options.start_timeout;
  rendezvous::LocalMeeting meeting({.rank = options.rank,
                                    .size = options.size,
                                    .epoch = options.epoch.value_or(0),
                                    .job = options.job,
                                    .secret = options.secret,
                                    .version = version(),
                                    .timeout = options.start_timeout,
                                    .hopeless = hopeless},
                                   [&] { return Book::make(options.size); });
  const Book book(meeting.descriptor());
  const Address listen = options.interface.empty() ? Address::loopback() : Address::of_interface(options.interface);
  transport::TcpDoor door(tcp_options(options, book.secret(), listen));
  book.enter(options.rank, door.address());
  meeting.ready();
  return connect_doors(std::move(door), book.addresses(options.size), deadline);
}

Connected connect_between_hosts(const Options& options, const std::function<bool()>& hopeless,
                                std::shared_ptr<net::Listener> listener) {
  check_secret(options);
  if (options.meeting.empty()) refuse_without_meeting(options);
  const auto deadline = net::Clock::now() + options.start_timeout;
  const Address meeting = meeting_of(options);
  const Address own = own_address(options, meeting);
  transport::TcpDoor door(tcp_options(options, options.secret, own));
  auto roster = std::make_shared<Roster>();
  roster->again = std::make_shared<net::Listener>(own);
  const rendezvous::Card card{
      .door = door.address(), .again = roster->again->address(), .host = rendezvous::host_tag()};
  const rendezvous::HostMeetingOptions how{
      .self = membership(options, options.secret), .timeout = options.start_timeout, .hopeless = hopeless};
  if (options.rank == 0) {
    roster->cards = rendezvous::hold_meeting(how, listener ? listener : listener_at(meeting), card);
  } else {
    roster->cards = rendezvous::attend_meeting(how, meeting, card);
  }
  std::vector<Address> doors;
  std::vector<int> hosts;
  std::map<std::string, int> known;
  for (const rendezvous::Card& one : roster->cards) {
    doors.push_back(one.door);
    hosts.push_back(known.emplace(one.host, static_cast<int>(known.size())).first->second);
  }
  auto transport = connect_doors(std::move(door), doors, deadline, std::move(hosts));
  return {.transport = std::move(transport), .roster = std::move(roster)};
}

std::string open_meeting(const Options& options) {
  static std::mutex mutex;
  static std::string opened;
  const std::lock_guard lock(mutex);
  if (!opened.empty()) return opened;
  const Address own = options.interface.empty() ? Address::outward() : Address::of_interface(options.interface);
  opened = listener_at(own)->address().text();
  return opened;
}

}  // namespace lockstep::engine
