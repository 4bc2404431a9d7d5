#include "rendezvous/host.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <climits>
#include <fstream>

#include "base/environment.hpp"
#include "net/proof.hpp"

namespace lockstep::rendezvous {

std::string host_id() {
  if (auto given = text_from("LOCKSTEP_HOST_ID")) return *given;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[PATH_MAX] = {};
  const ssize_t length = ::readlink("/proc/self/ns/net", space, sizeof space);
  return fmt::format("{} {} {}", boot, std::string_view(space, length > 0 ? static_cast<std::size_t>(length) : 0),
                     ::geteuid());
}

std::string host_tag() { return fmt::format("{:02x}", fmt::join(net::derive_key(host_id(), "lockstep host"), "")); }

std::string host_name() {
  utsname system{};
  return ::uname(&system) == 0 ? system.nodename : "unknown";
}

}  // namespace lockstep::rendezvous
