#include "preload.hpp"

#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "unique_fd.hpp"

namespace lockstep::launcher {

namespace {

constexpr const char* kName = "liblockstep_preload.so";

/// From the folder of this program: where the build, `cmake --install` and pip put it.
constexpr std::array kPlaces = {"../src/", "../" LOCKSTEP_LIBRARY_FOLDER "/",
                                "../lib*/python3*/site-packages/lockstep/lib/",
                                "../lib*/python3*/dist-packages/lockstep/lib/"};

std::string first_match(const std::string& pattern) {
  glob_t found{};
  std::string path;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0) path = found.gl_pathv[0];
  ::globfree(&found);
  return path;
}

std::string find_library() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : kPlaces) {
    const std::string found = error ? "" : first_match((folder / place / kName).string());
    if (!found.empty()) return std::filesystem::canonical(found, error).string();
  }
  return "";
}

/// The loader would take these for the end of a name, or for a variable.
bool can_be_named(const std::string& path) { return path.find_first_of(": \t\n$") == std::string::npos; }

/// A program with a sanitizer of its own wants to be the first that is loaded, and stops when it is not.
bool is_sanitized(const std::string& program) {
  const UniqueFd fd(::open(program.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return false;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return false;
  const auto names = [&](const std::string& library) {
    return ::memmem(data, bytes, library.data(), library.size()) != nullptr;
  };
  const bool found = names("libasan.so") || names("libtsan.so") || names("liblsan.so");
  ::munmap(data, bytes);
  return found;
}

bool is_allocator(const std::string& library) {
  return library.find("jemalloc") != std::string::npos || library.find("tcmalloc") != std::string::npos ||
         library.find("mimalloc") != std::string::npos;
}

}  // namespace

std::string find_preload(const std::string& program) {
  const std::string library = find_library();
  return library.empty() || !can_be_named(library) || is_sanitized(program) ? "" : library;
}

std::string with_preload(const std::string& before, const std::string& library) {
  std::vector<std::string> libraries;
  constexpr const char* kSeparators = ": \t\n";
  for (std::size_t begin = before.find_first_not_of(kSeparators); begin != std::string::npos;) {
    const std::size_t end = std::min(before.find_first_of(kSeparators, begin), before.size());
    libraries.push_back(before.substr(begin, end - begin));
    begin = before.find_first_not_of(kSeparators, end);
  }
  std::erase(libraries, library);  // of an outer job
  libraries.insert(std::find_if(libraries.begin(), libraries.end(), is_allocator), library);
  std::string result;
  for (const std::string& name : libraries) result += (result.empty() ? "" : ":") + name;
  return result;
}

}  // namespace lockstep::launcher
