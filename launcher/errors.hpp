// The errors that end the launcher with an exit code of their own.
#pragma once

#include <stdexcept>

namespace lockstep::launcher {

/// The user has to change the command. The message says what is wrong and what to do. Exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The command is right, but this machine does not have what the job needs. Exit code 69.
class UnavailableError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parts of the job are of different versions. Exit code 76.
class IncompatibleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::launcher
