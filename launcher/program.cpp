#include "program.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "run_options.hpp"
#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_executable(const std::string& path) { return is_file(path) && ::access(path.c_str(), X_OK) == 0; }

bool has_slash(const std::string& name) { return name.find('/') != std::string::npos; }

bool ends_in_py(const std::string& name) { return name.size() > 3 && name.compare(name.size() - 3, 3, ".py") == 0; }

/// The execute bit alone is not enough: some file systems set it on every file, and the shell would then be asked
/// to read Python.
bool is_executable_script(const std::string& path) {
  if (!is_executable(path)) return false;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char start[2] = {};
  return fd && ::read(fd.get(), start, 2) == 2 && start[0] == '#' && start[1] == '!';
}

std::optional<std::string> find_in_path(const std::string& name, const std::string& search_path) {
  std::size_t begin = 0;
  while (begin <= search_path.size()) {
    const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable(candidate)) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

Program with_python(std::vector<std::string> arguments, const std::string& search_path) {
  for (const char* name : {"python3", "python"}) {
    if (auto path = find_in_path(name, search_path)) {
      arguments.insert(arguments.begin(), name);
      return {*path, std::move(arguments)};
    }
  }
  throw UsageError(
      "python3 is not in PATH, and is needed to run a Python program. Activate its environment or install it");
}

std::string why_not(const std::string& name) {
  struct stat status {};
  if (::stat(name.c_str(), &status) != 0) {
    return has_slash(name) ? fmt::format("{}: there is no such file. Check the path", name)
                           : fmt::format("{}: there is no such program in PATH. Check the name", name);
  }
  if (S_ISDIR(status.st_mode)) return fmt::format("{} is a folder, not a program", name);
  if (!is_executable(name)) {
    return fmt::format("{} is not executable. Run chmod +x {}, or name its interpreter before it", name, name);
  }
  return fmt::format("{}: there is no such program in PATH. To run the file in this folder write ./{}", name, name);
}

}  // namespace

Program resolve_program(const std::vector<std::string>& command, bool module, const std::string& search_path) {
  const std::string& name = command.front();
  if (module) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.begin(), "-m");
    return with_python(std::move(arguments), search_path);
  }
  if (has_slash(name)) {
    if (ends_in_py(name) && is_file(name) && !is_executable_script(name)) return with_python(command, search_path);
    if (is_executable(name)) return {name, command};
  } else {
    if (auto path = find_in_path(name, search_path)) return {*path, command};
    if (ends_in_py(name) && is_file(name)) {
      return is_executable_script(name) ? Program{"./" + name, command} : with_python(command, search_path);
    }
  }
  throw UsageError(why_not(name));
}

}  // namespace lockstep::launcher
