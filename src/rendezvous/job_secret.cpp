#include "rendezvous/job_secret.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "base/environment.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "lockstep/error.hpp"
#include "net/proof.hpp"
#include "rendezvous/host.hpp"
#include "rendezvous/pmix.hpp"

namespace lockstep::rendezvous {
namespace {

using net::derive_key;
using net::Digest;
using net::random_nonce;

constexpr std::size_t kLeastBytes = 32;

std::string bytes_of(const Digest& digest) { return {digest.begin(), digest.end()}; }

std::string hex_of(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

// What a rank says of itself through PMIx: three words, separated by blanks.
struct Card {
  std::string host_id;  // a hash, so that it is one word
  std::string host_name;
  std::string key;  // rank 0's secret in hexadecimal digits; of the others "-"
};

std::string text_of(const Card& card) { return fmt::format("{} {} {}", card.host_id, card.host_name, card.key); }

Card card_of(const std::string& text) {
  Card card;
  std::istringstream(text) >> card.host_id >> card.host_name >> card.key;
  return card;
}

[[noreturn]] void refuse_several_hosts(const std::vector<Card>& cards) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) ranks[cards[rank].host_id].push_back(rank);
  std::string places;
  for (const auto& [host, members] : ranks) {
    places += fmt::format("{}rank {} on {}", places.empty() ? "" : ", ", fmt::join(members, " "),
                          cards[members.front()].host_name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the ranks are on {} hosts, or in network namespaces or of users that cannot meet ({}). All "
                          "ranks must be on one host in this version: start them there (mpirun --host localhost:{}, "
                          "srun --nodes=1).",
                          ranks.size(), places, cards.size()));
}

std::string exchange(Pmix& pmix, const Place& place, std::chrono::milliseconds timeout) {
  const Card mine{.host_id = hex_of(derive_key(host_id(), "lockstep host")),
                  .host_name = host_name(),
                  .key = place.rank == 0 ? hex_of(random_nonce()) : "-"};
  std::vector<Card> cards;
  for (const auto& text : pmix.all_gather("lockstep", text_of(mine), place.size, timeout)) {
    cards.push_back(card_of(text));
  }
  for (const Card& card : cards) {
    if (card.host_id != mine.host_id) refuse_several_hosts(cards);
  }
  return bytes_of(derive_key(cards.front().key, "lockstep secret from rank 0"));
}

// Once per process: engines that it starts later are of the same job.
std::string exchanged_secret(Pmix& pmix, const Place& place, std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  static std::optional<std::string> secret;
  const std::lock_guard lock(mutex);
  if (!secret) secret = exchange(pmix, place, timeout);
  return *secret;
}

std::string secret_from_name(const std::string& by, const std::string& job) {
  return bytes_of(derive_key(fmt::format("{} {} {}", by, job, ::geteuid()), "lockstep meeting by credentials"));
}

[[noreturn]] void unfit_file(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} (LOCKSTEP_SECRET_FILE) {}. Make one that only you can read: (umask 077; head -c 32 "
                          "/dev/urandom > {})",
                          path, why, path));
}

}  // namespace

std::string secret_from_file(const std::string& path, const std::string& job) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat state {};
  if (!file || ::fstat(file.get(), &state) != 0) throw_errno(fmt::format("open {} (LOCKSTEP_SECRET_FILE)", path));
  if (!S_ISREG(state.st_mode)) unfit_file(path, "is not a file");
  if (state.st_uid != ::geteuid()) unfit_file(path, "belongs to another user");
  if ((state.st_mode & 077) != 0) unfit_file(path, "can be read or written by other users");
  std::string content(4096, '\0');
  const ssize_t length = ::pread(file.get(), content.data(), content.size(), 0);
  if (length < static_cast<ssize_t>(kLeastBytes)) unfit_file(path, "has fewer than 32 bytes");
  content.resize(static_cast<std::size_t>(length));
  // Jobs may use the same file side by side.
  return bytes_of(derive_key(content, fmt::format("lockstep secret from a file for {}", job)));
}

std::string job_secret(const Started& started, std::chrono::milliseconds timeout) {
  const Place& place = started.place;
  if (auto path = text_from("LOCKSTEP_SECRET_FILE")) return secret_from_file(*path, place.job);
  if (started.channel == Channel::inherited) return {};
  if (started.channel == Channel::pmix) {
    if (auto pmix = Pmix::load()) return exchanged_secret(*pmix, place, timeout);
    log::info(place.rank, fmt::format("{} offers PMIx, but there is no library for it here (libpmix.so.2): the ranks "
                                      "meet by their user",
                                      started.by));
  }
  return secret_from_name(started.by, place.job);
}

}  // namespace lockstep::rendezvous
