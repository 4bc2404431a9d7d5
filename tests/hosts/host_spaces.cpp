#include "host_spaces.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/fd.hpp"

namespace lockstep::hosts {

namespace {

void mount_at(const char* what, const char* where, const char* kind, unsigned long flags, const char* options = "") {
  if (::mount(what, where, kind, flags, options) != 0) throw_errno(std::string("mount ") + what + " at " + where);
}

void keep_mounts_to_itself() { mount_at("none", "/", nullptr, MS_REC | MS_PRIVATE); }

/// /sys shows the network of whoever mounts it. The control groups below it are taken along.
void mount_sys() {
  const char* groups = "/run/control-groups";
  const bool has_groups = ::access("/sys/fs/cgroup", X_OK) == 0 && ::mkdir(groups, 0755) == 0 &&
                          ::mount("/sys/fs/cgroup", groups, nullptr, MS_BIND | MS_REC, nullptr) == 0;
  mount_at("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  if (has_groups) mount_at(groups, "/sys/fs/cgroup", nullptr, MS_MOVE);
  ::rmdir(groups);
}

void mount_names(int count) {
  const char* path = "/run/etc-hosts";
  std::ofstream file(path);
  file << "127.0.0.1 localhost\n";
  for (int i = 0; i < count; ++i) file << address_of(i) << " host" << i << "\n";
  file.close();
  if (!file) throw_errno(std::string("write ") + path);
  mount_at(path, "/etc/hosts", nullptr, MS_BIND);
}

}  // namespace

std::string address_of(int host) { return "10.99.0." + std::to_string(host + 1); }

void furnish_host(int host, int count) {
  const std::string name = "host" + std::to_string(host);
  ::prctl(PR_SET_NAME, name.c_str());
  if (::sethostname(name.data(), name.size()) != 0) throw_errno("set the name of the host");
  keep_mounts_to_itself();
  mount_at("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  mount_at("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
  mount_at("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
  mount_sys();
  mount_names(count);
}

void furnish_keeper() { keep_mounts_to_itself(); }

void detach_from_starter() {
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int standard = 0; standard <= 2; ++standard) ::dup2(null.get(), standard);
  if (::chdir("/") != 0) throw_errno("go to /");
}

}  // namespace lockstep::hosts
