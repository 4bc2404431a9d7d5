#include "machine_checks.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <set>

#include "base/memory_limit.hpp"
#include "environment.hpp"
#include "topology.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

using Level = Finding::Level;

constexpr std::size_t kMegabyte = std::size_t{1} << 20;
constexpr const char* kHugePages = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

std::string size_text(std::size_t bytes) {
  return bytes >= 1024 * kMegabyte ? fmt::format("{:.1f} GB", static_cast<double>(bytes) / (1024.0 * kMegabyte))
                                   : fmt::format("{} MB", bytes / kMegabyte);
}

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::size_t> limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

Finding check_memory() {
  const auto machine =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return judge_memory(machine, memory_left(), limit_of(RLIMIT_AS));
}

Finding check_open_files() {
  rlimit limit{};
  checked(::getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
  return judge_open_files(limit.rlim_cur, limit.rlim_max);
}

/// Tries what ranks do: a process reads the memory of one that it has not started.
int try_to_read_another_process() {
  static const long word = 0x6c6f636b73746570;
  const pid_t reader = checked(::fork(), "fork");
  if (reader == 0) {
    long copy = 0;
    const iovec here{.iov_base = &copy, .iov_len = sizeof copy};
    const iovec there{.iov_base = const_cast<long*>(&word), .iov_len = sizeof word};
    const ssize_t count = ::process_vm_readv(::getppid(), &here, 1, &there, 1, 0);
    ::_exit(count == static_cast<ssize_t>(sizeof copy) && copy == word ? 0 : errno);
  }
  int status = 0;
  ::waitpid(reader, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

Finding check_reading_of_peers() {
  const std::string scope = line_of("/proc/sys/kernel/yama/ptrace_scope");
  return judge_reading_of_peers(try_to_read_another_process(),
                                scope.empty() ? std::nullopt : std::optional(std::atoi(scope.c_str())));
}

Finding check_cores() {
  const int nodes = memory_nodes();
  std::string text = fmt::format("{} usable", usable_cores());
  if (nodes > 1) text += fmt::format(", {} memory nodes", nodes);
  if (has_hwloc()) return {"cores", Level::good, text + "; hwloc is there to bind ranks to them"};
  return {"cores", nodes > 1 ? Level::advice : Level::good, text + "; ranks are not bound to them, which needs hwloc",
          "sudo apt-get install libhwloc15"};
}

std::string address_text(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = address.sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ::inet_ntop(address.sa_family, bytes, text, sizeof text) != nullptr ? text : "";
}

Finding check_interfaces() {
  ifaddrs* list = nullptr;
  checked(::getifaddrs(&list), "getifaddrs");
  std::map<std::string, std::set<std::string>> up;
  bool loopback = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) {
      loopback = true;
    } else {
      up[entry->ifa_name].insert(address_text(*entry->ifa_addr));
    }
  }
  ::freeifaddrs(list);
  if (!loopback) {
    return {"interfaces", Level::problem, "the loopback interface is down, over which torch.distributed programs meet",
            "sudo ip link set lo up"};
  }
  std::string text = "loopback";
  for (const auto& [name, addresses] : up) text += fmt::format("; {} {}", name, *addresses.begin());
  return {"interfaces", Level::good, text};
}

}  // namespace

Finding judge_memory(std::size_t machine_bytes, std::optional<std::size_t> left_in_group,
                     std::optional<std::size_t> address_space) {
  const std::string machine = size_text(machine_bytes) + " in this machine";
  if (address_space) {
    return {"memory", Level::problem,
            fmt::format("{}, but only {} of address space per process (ulimit -v); each rank maps the memory of all",
                        machine, size_text(*address_space)),
            "ulimit -v unlimited"};
  }
  if (!left_in_group) return {"memory", Level::good, machine + ", no limit of the control group"};
  const std::string left =
      fmt::format("{}, {} left under the limit of the control group", machine, size_text(*left_in_group));
  if (*left_in_group >= 512 * kMegabyte) return {"memory", Level::good, left};
  return {"memory", Level::advice, left + ", which is little for PyTorch",
          "give the job more memory (docker run --memory, sbatch --mem), or start fewer ranks"};
}

Finding judge_open_files(std::size_t soft, std::size_t hard) {
  constexpr std::size_t kEnough = 1024;
  if (soft >= kEnough) return {"open files", Level::good, fmt::format("{} per process", soft)};
  const bool raisable = hard >= kEnough;
  return {"open files", Level::advice, fmt::format("only {} per process; data loaders use many", soft),
          raisable ? fmt::format("ulimit -n {}", hard) : "raise nofile in /etc/security/limits.conf and log in again"};
}

Finding judge_huge_pages(const std::string& setting) {
  const std::size_t begin = setting.find('[');
  const std::size_t end = setting.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return {"huge pages", Level::absent, "this kernel has none for shared memory"};
  }
  const std::string chosen = setting.substr(begin + 1, end - begin - 1);
  const std::string text = fmt::format("for shared memory: {}", chosen);
  if (chosen == "always" || chosen == "within_size" || chosen == "force") return {"huge pages", Level::good, text};
  return {"huge pages", Level::absent,
          text + "; ordinary pages are used. To try them:", fmt::format("echo within_size | sudo tee {}", kHugePages)};
}

Finding judge_reading_of_peers(int denied, std::optional<int> scope) {
  const char* name = "process_vm_readv";
  if (denied == 0) return {name, Level::good, "ranks can read each other's tensors in place"};
  const std::string text =
      fmt::format("refused ({}): tensors outside the shared heap are copied once more", ::strerror(denied));
  if (denied == EPERM && scope.value_or(0) > 0) {
    return {name, Level::advice, fmt::format("{}; kernel.yama.ptrace_scope is {}", text, *scope),
            "sudo sysctl kernel.yama.ptrace_scope=0"};
  }
  return {name, Level::advice, text + "; in a container, allow it", "docker run --cap-add SYS_PTRACE ..."};
}

std::vector<Finding> check_machine() {
  return {check_cores(),
          check_memory(),
          check_open_files(),
          judge_huge_pages(line_of(kHugePages)),
          check_reading_of_peers(),
          check_interfaces()};
}

}  // namespace lockstep::launcher
