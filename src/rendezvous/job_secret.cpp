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

// What a rank says of itself through PMIx: four words, separated by blanks.
struct PmixWords {
  std::string host;
  std::string host_name;
  std::string key;      // rank 0's secret in hexadecimal digits; of the others "-"
  std::string meeting;  // where rank 0 listens; "-" when all are on one host
};

std::string text_of(const PmixWords& words) {
  return fmt::format("{} {} {} {}", words.host, words.host_name, words.key, words.meeting);
}

PmixWords words_of(const std::string& text) {
  PmixWords words;
  std::istringstream(text) >> words.host >> words.host_name >> words.key >> words.meeting;
  return words;
}

// The launcher has put them on one host, and yet they cannot share its memory.
[[noreturn]] void refuse_to_part(const std::vector<PmixWords>& all) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) ranks[all[rank].host].push_back(rank);
  std::string places;
  for (const auto& [host, members] : ranks) {
    places += fmt::format("{}rank {} on {}", places.empty() ? "" : ", ", fmt::join(members, " "),
                          all[members.front()].host_name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the launcher says that all ranks are on one host, but they are in {} network namespaces, or "
                          "of as many users, and cannot share memory ({}). Start them in one.",
                          ranks.size(), places));
}

JobSecret exchange(Pmix& pmix, const Place& place, const SecretOptions& options) {
  const bool parted = place.local_size != place.size;
  const PmixWords mine{.host = host_tag(),
                       .host_name = host_name(),
                       .key = place.rank == 0 ? hex_of(random_nonce()) : "-",
                       .meeting = place.rank == 0 && parted ? options.open_meeting() : "-"};
  std::vector<PmixWords> all;
  for (const auto& text : pmix.all_gather("lockstep", text_of(mine), place.size, options.timeout)) {
    all.push_back(words_of(text));
  }
  for (const PmixWords& one : all) {
    if (one.host != mine.host && !parted) refuse_to_part(all);
  }
  return {.secret = bytes_of(derive_key(all.front().key, "lockstep secret from rank 0")),
          .meeting = parted ? all.front().meeting : std::string()};
}

// Once per process: engines that it starts later are of the same job.
JobSecret exchanged_secret(Pmix& pmix, const Place& place, const SecretOptions& options) {
  static std::mutex mutex;
  static std::optional<JobSecret> secret;
  const std::lock_guard lock(mutex);
  if (!secret) secret = exchange(pmix, place, options);
  return *secret;
}

[[noreturn]] void refuse_several_hosts(const Started& started) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the ranks are on several hosts, and {} has no protected way to give them a secret. Make a "
                          "file that only you can read, (umask 077; head -c 32 /dev/urandom > FILE), put it on all "
                          "hosts, and set LOCKSTEP_SECRET_FILE to its path for all ranks.",
                          started.by));
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

JobSecret job_secret(const Started& started, const SecretOptions& options) {
  const Place& place = started.place;
  if (auto path = text_from("LOCKSTEP_SECRET_FILE")) return {.secret = secret_from_file(*path, place.job)};
  if (started.channel == Channel::inherited) return {};
  if (started.channel == Channel::pmix) {
    if (auto pmix = Pmix::load()) return exchanged_secret(*pmix, place, options);
    log::info(place.rank, fmt::format("{} offers PMIx, but there is no library for it here (libpmix.so.2): the ranks "
                                      "meet by their user",
                                      started.by));
  }
  if (place.local_size != place.size) refuse_several_hosts(started);
  return {.secret = secret_from_name(started.by, place.job)};
}

}  // namespace lockstep::rendezvous
