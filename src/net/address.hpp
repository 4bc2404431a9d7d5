// Where a socket is: an IP address and a port.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::net {

class Address {
 public:
  /// This machine only. Port 0: the system chooses one.
  static Address loopback(std::uint16_t port = 0);

  /// The address of one network interface ("eth0"): IPv4 before IPv6, and none that is valid on one link only.
  /// Throws Error(unavailable) with the interfaces that there are.
  static Address of_interface(const std::string& name, std::uint16_t port = 0);

  /// The address by which this machine reaches another one. Throws Error(unavailable) when no way leads there.
  static Address towards(const Address& other);

  /// The address by which this machine reaches most others: that of the default route, or of its only interface beside
  /// loopback. Throws Error(unavailable) with the interfaces that there are.
  static Address outward();

  /// "localhost:80", "node1:80" or what `parse` takes; names are looked up, IPv4 before IPv6. Throws
  /// Error(invalid_argument) for a text that is none, and Error(unavailable) for a name that nobody knows.
  static Address resolve(const std::string& text);

  /// "192.0.2.1:80" or "[2001:db8::1]:80"; numbers only, nothing is looked up. nullopt for anything else.
  static std::optional<Address> parse(std::string_view text);

  static Address from(const sockaddr_storage& raw);

  std::string text() const;
  std::uint16_t port() const;
  Address with_port(std::uint16_t port) const;
  bool is_loopback() const;

  /// Stands for all interfaces at once: Lockstep never listens on it.
  bool is_wildcard() const;

  int family() const { return raw_.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&raw_); }
  socklen_t raw_size() const { return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }

  bool operator==(const Address& other) const { return text() == other.text(); }

 private:
  Address() = default;

  const sockaddr_in& v4() const { return reinterpret_cast<const sockaddr_in&>(raw_); }
  const sockaddr_in6& v6() const { return reinterpret_cast<const sockaddr_in6&>(raw_); }

  sockaddr_storage raw_{};
};

}  // namespace lockstep::net
