#include "stack_door.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>

#include "errors.hpp"
#include "function_call.hpp"

namespace lockstep::launcher {

namespace {

constexpr std::string_view kDoorName = "lockstep-stack.";
constexpr int kMostKnocking = 16;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

/// Abstract: the name begins with a zero, and is gone with its last descriptor.
Address address_of(const FoundDoor& door) {
  const std::string text = fmt::format("{}{}.{}", kDoorName, door.launcher, door.job);
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::size_t length = std::min(text.size(), sizeof address.name.sun_path - 1);
  std::memcpy(address.name.sun_path + 1, text.data(), length);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

UniqueFd make_socket(int flags) {
  return UniqueFd(checked(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0), "socket"));
}

/// By the word of the kernel. Root may look at everybody's jobs.
bool is_trusted(const UniqueFd& peer, bool root_too) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  return credentials.uid == ::geteuid() || (root_too ? credentials.uid == 0 : ::geteuid() == 0);
}

bool is_own(pid_t process) {
  struct stat status {};
  return ::stat(fmt::format("/proc/{}", process).c_str(), &status) == 0 &&
         (status.st_uid == ::geteuid() || ::geteuid() == 0);
}

/// A message of one byte, with room for one descriptor beside it.
struct Parcel {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};

  Parcel() {
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;
};

UniqueFd receive_file(const UniqueFd& socket) {
  Parcel parcel;
  if (::recvmsg(socket.get(), &parcel.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return UniqueFd();
  const cmsghdr* item = CMSG_FIRSTHDR(&parcel.message);
  if (item == nullptr || item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) return UniqueFd();
  int file = -1;
  std::memcpy(&file, CMSG_DATA(item), sizeof file);
  return UniqueFd(file);
}

std::string read_whole_file(const UniqueFd& file) {
  std::string text;
  std::array<char, 65536> buffer;
  ssize_t count = 0;
  while ((count = ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

StackDoor::StackDoor(const std::string& job_id) : socket_(make_socket(SOCK_NONBLOCK)) {
  const Address address = address_of({::getpid(), job_id});
  checked(::bind(socket_.get(), address.get(), address.length), "binding the socket of lockstep stack");
  checked(::listen(socket_.get(), kMostKnocking), "listen");
}

UniqueFd StackDoor::let_in() const {
  UniqueFd visitor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (visitor && !is_trusted(visitor, true)) visitor.reset();
  return visitor;
}

void answer(const UniqueFd& visitor, const std::string& text) {
  const UniqueFd file = make_memory_file("lockstep-answer", text);
  Parcel parcel;
  cmsghdr* item = CMSG_FIRSTHDR(&parcel.message);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(item), &number, sizeof number);
  ::sendmsg(visitor.get(), &parcel.message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::vector<FoundDoor> find_doors() {
  std::vector<FoundDoor> doors;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find(fmt::format("@{}", kDoorName));
    if (at == std::string::npos) continue;
    const char* const end = line.data() + line.size();
    FoundDoor door;
    const auto number = std::from_chars(line.data() + at + 1 + kDoorName.size(), end, door.launcher);
    if (number.ec != std::errc() || number.ptr == end || *number.ptr != '.') continue;
    door.job.assign(number.ptr + 1, end);
    if (!is_own(door.launcher)) continue;
    // A visitor under way is listed by the same name.
    const auto same = [&](const FoundDoor& other) { return other.launcher == door.launcher && other.job == door.job; };
    if (std::none_of(doors.begin(), doors.end(), same)) doors.push_back(std::move(door));
  }
  return doors;
}

std::string ask_at(const FoundDoor& door, std::chrono::milliseconds limit) {
  const UniqueFd socket = make_socket(SOCK_NONBLOCK);
  const Address address = address_of(door);
  if (::connect(socket.get(), address.get(), address.length) != 0 || !is_trusted(socket, false)) {
    throw UnavailableError(fmt::format("job {} has just ended, or is not yours", door.job));
  }
  pollfd entry{socket.get(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(limit.count()));
  const UniqueFd file = ready == 1 ? receive_file(socket) : UniqueFd();
  if (!file) {
    throw UnavailableError(ready == 1 ? fmt::format("job {} has just ended, or is not yours", door.job)
                                      : fmt::format("lockstep run (pid {}) of job {} does not answer; is it stopped?",
                                                    door.launcher, door.job));
  }
  return read_whole_file(file);
}

}  // namespace lockstep::launcher
