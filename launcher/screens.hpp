// The launcher's two outputs, which may be one and the same place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "screen.hpp"

namespace lockstep::launcher {

class Screens {
 public:
  /// Standard output and standard error of this process, coloured if they are terminals and NO_COLOR is not set.
  Screens();

  Screen& output() { return own_output_ ? *own_output_ : error_; }
  Screen& error() { return error_; }
  void show_timestamps(bool shown);

  /// Writes what the targets take now. What they do not take is waited for in `epoll`, with `key` as the event's data.
  void write_some(int epoll, std::uint64_t key);

  /// So much is waiting that the ranks have to wait as well, as with any full pipe.
  bool are_full() const;

  /// Waits until all is written, or `interrupt_fd` becomes readable. Returns false in that case.
  bool flush(int interrupt_fd);

 private:
  std::array<Screen*, 2> all() { return {own_output_.get(), &error_}; }

  Screen error_;
  std::unique_ptr<Screen> own_output_;  // null when stdout and stderr lead to the same place
  std::array<bool, 2> waiting_{};       // stdout, stderr: registered in epoll
};

}  // namespace lockstep::launcher
