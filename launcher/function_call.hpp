// A function that the ranks call, instead of a program with arguments (lockstep.run of Python). To the launcher it is
// bytes: every rank inherits a descriptor from which it reads the call, and one into which it writes the result.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unique_fd.hpp"

namespace lockstep::launcher {

/// The folder through which the caller and the launcher speak: `call` is there; the launcher adds `result.R` for each
/// rank and, when the job fails, `cause`: the number of the rank that failed first, and on the next line how.
class CallFolder {
 public:
  /// Throws UsageError when there is no call in it.
  explicit CallFolder(std::string path);

  int call_fd() const { return call_.get(); }

  /// For ranks on other hosts.
  std::string read_call() const;

  /// An empty file, also when an earlier start of the job has left one.
  UniqueFd make_result(int rank) const;

  /// A piece of what a rank on another host has written.
  void append_result(int rank, std::string_view bytes) const;

  void name_cause(int rank, const std::string& what_happened) const;

 private:
  UniqueFd open_file(const std::string& name, int flags) const;

  std::string path_;
  UniqueFd call_;
};

/// The same on another host, in memory.
UniqueFd make_memory_file(const char* name, std::string_view bytes = {});

/// Variables that tell a rank the numbers of its two descriptors.
std::vector<std::string> call_settings(int call_fd, int result_fd);

}  // namespace lockstep::launcher
