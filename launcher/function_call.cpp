#include "function_call.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/mman.h>

#include <array>
#include <utility>

#include "errors.hpp"

namespace lockstep::launcher {

namespace {

void write_all(const UniqueFd& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    bytes.remove_prefix(static_cast<std::size_t>(checked(count, "writing the result of a function")));
  }
}

std::string result_name(int rank) { return fmt::format("result.{}", rank); }

}  // namespace

CallFolder::CallFolder(std::string path) : path_(std::move(path)), call_(open_file("call", O_RDONLY)) {}

UniqueFd CallFolder::open_file(const std::string& name, int flags) const {
  const std::string path = path_ + "/" + name;
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!file) throw UsageError(fmt::format("--call: cannot open {}: {}", path, ::strerror(errno)));
  return file;
}

std::string CallFolder::read_call() const {
  std::string bytes;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t count = ::pread(call_.get(), buffer.data(), buffer.size(), static_cast<off_t>(bytes.size()));
    if (checked(count, "reading the function") == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

UniqueFd CallFolder::make_result(int rank) const { return open_file(result_name(rank), O_RDWR | O_CREAT | O_TRUNC); }

void CallFolder::append_result(int rank, std::string_view bytes) const {
  write_all(open_file(result_name(rank), O_WRONLY | O_APPEND), bytes);
}

void CallFolder::name_cause(int rank, const std::string& what_happened) const {
  write_all(open_file("cause", O_WRONLY | O_CREAT | O_TRUNC), fmt::format("{}\n{}\n", rank, what_happened));
}

UniqueFd make_memory_file(const char* name, std::string_view bytes) {
  UniqueFd file(checked(::memfd_create(name, MFD_CLOEXEC), "memfd_create"));
  write_all(file, bytes);
  return file;
}

std::vector<std::string> call_settings(int call_fd, int result_fd) {
  return {fmt::format("LOCKSTEP_CALL_FD={}", call_fd), fmt::format("LOCKSTEP_RESULT_FD={}", result_fd)};
}

}  // namespace lockstep::launcher
