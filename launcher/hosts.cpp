#include "hosts.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <fstream>
#include <sstream>

#include "errors.hpp"

namespace lockstep::launcher {

namespace {

constexpr int kMostSlots = 4096;

int parse_slots(const std::string& text, const std::string& entry) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMostSlots) {
    throw UsageError(fmt::format("{}: the slots of a host must be a whole number from 1 to {}. For example: -H a:2,b:2",
                                 entry, kMostSlots));
  }
  return slots;
}

/// "a" or "a:2".
HostSlots parse_entry(const std::string& entry) {
  const std::size_t colon = entry.rfind(':');
  HostSlots host{entry.substr(0, colon)};
  if (colon != std::string::npos) host.slots = parse_slots(entry.substr(colon + 1), entry);
  if (host.name.empty()) throw UsageError(fmt::format("'{}': a host needs a name. For example: -H a:2,b:2", entry));
  return host;
}

void add(std::vector<HostSlots>& hosts, const HostSlots& host) {
  const auto same =
      std::find_if(hosts.begin(), hosts.end(), [&](const auto& other) { return other.name == host.name; });
  if (same == hosts.end()) {
    hosts.push_back(host);
  } else {
    same->slots += host.slots;
  }
}

}  // namespace

std::vector<HostSlots> parse_host_list(const std::string& list) {
  std::vector<HostSlots> hosts;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) add(hosts, parse_entry(entry));
  return hosts;
}

std::vector<HostSlots> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("--hostfile: cannot read {}", path));
  std::vector<HostSlots> hosts;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string entry;
    if (!(words >> entry)) continue;
    HostSlots host = parse_entry(entry);
    for (std::string word; words >> word;) {
      if (word.rfind("slots=", 0) == 0) host.slots = parse_slots(word.substr(6), line);
    }
    add(hosts, host);
  }
  if (hosts.empty()) throw UsageError(fmt::format("--hostfile: there is no host in {}", path));
  return hosts;
}

bool is_this_machine(const std::string& name) {
  std::array<char, HOST_NAME_MAX + 1> here{};
  ::gethostname(here.data(), here.size() - 1);
  return name == "localhost" || name == "127.0.0.1" || name == here.data();
}

int total_slots(const std::vector<HostSlots>& hosts) {
  int total = 0;
  for (const HostSlots& host : hosts) total += host.slots;
  return total;
}

std::vector<HostSlots> share_ranks(const std::vector<HostSlots>& hosts, int ranks) {
  if (ranks > total_slots(hosts)) {
    throw UsageError(fmt::format("-np {}: the hosts have {} slots. Add hosts, or give them more slots: -H {}:{}", ranks,
                                 total_slots(hosts), hosts.front().name,
                                 hosts.front().slots + ranks - total_slots(hosts)));
  }
  std::vector<HostSlots> shares;
  for (const HostSlots& host : hosts) {
    const int share = std::min(host.slots, ranks);
    if (share > 0) shares.push_back({host.name, share});
    ranks -= share;
  }
  return shares;
}

Placement place_on_hosts(const std::vector<HostSlots>& shares, int rank) {
  Placement place{.rank = rank, .size = total_slots(shares), .cross_size = static_cast<int>(shares.size())};
  place.local_rank = rank;
  for (const HostSlots& share : shares) {
    place.local_size = share.slots;
    if (place.local_rank < share.slots) break;
    place.local_rank -= share.slots;
    ++place.cross_rank;
  }
  return place;
}

}  // namespace lockstep::launcher
