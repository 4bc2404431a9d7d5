#include "net/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <charconv>
#include <cstring>
#include <map>
#include <memory>

#include "base/fd.hpp"
#include "lockstep/error.hpp"

namespace lockstep::net {
namespace {

template <class Raw>
sockaddr_storage storage_of(const Raw& raw) {
  sockaddr_storage storage{};
  std::memcpy(&storage, &raw, sizeof raw);
  return storage;
}

sockaddr_storage make_v4(in_addr address, std::uint16_t port) {
  sockaddr_in raw{};
  raw.sin_family = AF_INET;
  raw.sin_addr = address;
  raw.sin_port = htons(port);
  return storage_of(raw);
}

sockaddr_storage make_v6(const in6_addr& address, std::uint16_t port) {
  sockaddr_in6 raw{};
  raw.sin6_family = AF_INET6;
  raw.sin6_addr = address;
  raw.sin6_port = htons(port);
  return storage_of(raw);
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return port;
}

// inet_pton wants a terminated text; one that is longer than any address is none.
template <class Raw>
bool parse_host(int family, std::string_view host, Raw& raw) {
  char terminated[INET6_ADDRSTRLEN] = {};
  if (host.size() >= sizeof terminated || host.find('\0') != host.npos) return false;
  std::memcpy(terminated, host.data(), host.size());
  return inet_pton(family, terminated, &raw) == 1;
}

// Lower is better; a link-local IPv6 address needs the name of its link, which the peer does not share.
int preference(const sockaddr& address) {
  if (address.sa_family == AF_INET) return 0;
  if (address.sa_family != AF_INET6) return 2;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? 2 : 1;
}

// The best address of each interface, port 0.
std::map<std::string, sockaddr_storage> addresses_of_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw_errno("list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, &freeifaddrs);
  std::map<std::string, const sockaddr*> best;
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || preference(*item->ifa_addr) > 1) continue;
    const sockaddr*& chosen = best[item->ifa_name];
    if (chosen == nullptr || preference(*item->ifa_addr) < preference(*chosen)) chosen = item->ifa_addr;
  }
  std::map<std::string, sockaddr_storage> found;
  for (const auto& [name, address] : best) {
    found[name] = address->sa_family == AF_INET ? make_v4(reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 0)
                                                : make_v6(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 0);
  }
  return found;
}

std::string names_of(const std::map<std::string, sockaddr_storage>& interfaces) {
  std::string names;
  for (const auto& [name, address] : interfaces) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

Address Address::loopback(std::uint16_t port) { return from(make_v4({.s_addr = htonl(INADDR_LOOPBACK)}, port)); }

Address Address::of_interface(const std::string& name, std::uint16_t port) {
  const auto found = addresses_of_interfaces();
  const auto own = found.find(name);
  if (own == found.end()) {
    throw Error(ErrorCode::unavailable,
                "there is no network interface '" + name + "' with an address; there are: " + names_of(found));
  }
  return from(own->second).with_port(port);
}

Address Address::outward() {
  const auto elsewhere = parse("192.0.2.1:9");  // reserved for documentation; nothing is sent there
  try {
    return towards(*elsewhere);
  } catch (const Error&) {  // there is no default route
    auto found = addresses_of_interfaces();
    std::erase_if(found, [](const auto& interface) { return from(interface.second).is_loopback(); });
    if (found.size() == 1) return from(found.begin()->second);
    throw Error(ErrorCode::unavailable,
                "this host has no default route, so one of its network interfaces must be named "
                "(LOCKSTEP_INTERFACE); those with an address are: " +
                    (found.empty() ? "none" : names_of(found)));
  }
}

Address Address::towards(const Address& other) {
  // A datagram socket that is connected sends nothing, but has the address that would be used.
  const Fd probe(::socket(other.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (!probe || ::connect(probe.get(), other.raw(), other.raw_size()) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    throw Error(ErrorCode::unavailable, "no way leads from this host to " + other.text() + ": " + std::strerror(errno));
  }
  return from(own).with_port(0);
}

Address Address::resolve(const std::string& text) {
  if (const auto numbers = parse(text)) return *numbers;
  const std::size_t colon = text.rfind(':');
  const auto port = colon == text.npos ? std::nullopt : parse_port(std::string_view(text).substr(colon + 1));
  if (!port) throw Error(ErrorCode::invalid_argument, "'" + text + "' is no address of the form host:port");
  const std::string host = text.substr(0, colon);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &wanted, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  const addrinfo* best = nullptr;
  for (const addrinfo* item = failure == 0 ? list : nullptr; item != nullptr; item = item->ai_next) {
    if (best == nullptr || preference(*item->ai_addr) < preference(*best->ai_addr)) best = item;
  }
  if (best == nullptr)
    throw Error(ErrorCode::unavailable, "the host '" + host + "' is not known here: " + ::gai_strerror(failure));
  sockaddr_storage raw{};
  std::memcpy(&raw, best->ai_addr, best->ai_addrlen);
  return from(raw).with_port(*port);
}

std::optional<Address> Address::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  const auto port = parse_port(text.substr(colon + 1));
  if (!port) return std::nullopt;
  const std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    in6_addr v6{};
    if (!parse_host(AF_INET6, host.substr(1, host.size() - 2), v6)) return std::nullopt;
    return from(make_v6(v6, *port));
  }
  in_addr v4{};
  if (!parse_host(AF_INET, host, v4)) return std::nullopt;
  return from(make_v4(v4, *port));
}

Address Address::from(const sockaddr_storage& raw) {
  Address address;
  address.raw_ = raw;
  return address;
}

std::string Address::text() const {
  char host[INET6_ADDRSTRLEN] = {};
  const bool is_v4 = family() == AF_INET;
  if (!is_v4 && family() != AF_INET6) return "an unnamed socket";
  inet_ntop(family(), is_v4 ? static_cast<const void*>(&v4().sin_addr) : &v6().sin6_addr, host, sizeof host);
  std::string text = is_v4 ? "" : "[";
  text += host;
  text += is_v4 ? ":" : "]:";
  return text += std::to_string(port());
}

std::uint16_t Address::port() const { return ntohs(family() == AF_INET ? v4().sin_port : v6().sin6_port); }

Address Address::with_port(std::uint16_t port) const {
  return from(family() == AF_INET ? make_v4(v4().sin_addr, port) : make_v6(v6().sin6_addr, port));
}

bool Address::is_loopback() const {
  if (family() == AF_INET) return (ntohl(v4().sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&v6().sin6_addr);
}

bool Address::is_wildcard() const {
  if (family() == AF_INET) return v4().sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&v6().sin6_addr);
}

}  // namespace lockstep::net
