// Where lines are shown: a terminal, a pipe or a file, written without ever blocking the launcher.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launcher {

enum class ScreenKind {
  plain,     ///< a pipe, a file, or a terminal that can do nothing
  terminal,  ///< can draw over a line
};

/// True when the descriptor is a terminal that understands control sequences.
bool is_capable_terminal(int fd, const char* term);

/// True when both descriptors lead to the same place, so that lines for both must be kept whole together.
bool same_target(int fd, int other_fd);

/// Width of a terminal in characters, 80 when it does not tell.
int terminal_width(int fd);

/// Holds lines until the target takes them. `write_some` never blocks; a target that takes nothing lets `pending` grow,
/// and the owner then stops reading what would be shown.
///
/// On a terminal one unfinished line, the *live* line, stands below all others and is drawn again after each of them:
/// that is the progress bar of rank 0.
class Screen {
 public:
  Screen(int fd, ScreenKind kind, bool coloured);

  ScreenKind kind() const { return kind_; }
  bool coloured() const { return coloured_; }
  int fd() const { return fd_; }

  /// Whether lines of ranks carry the time at which they came.
  bool timestamps() const { return timestamps_; }
  void show_timestamps(bool shown) { timestamps_ = shown; }

  void line(std::string_view prefix, std::string_view text);

  /// Replaces the live line. An empty text removes it, if `owner` drew it. Does nothing on a plain screen.
  void live(const void* owner, std::string_view prefix, std::string_view text);

  /// Writes as much as the target takes now.
  void write_some();
  std::size_t pending() const { return buffer_.size() - written_; }

  /// errno of the failed write, after which everything is discarded; 0 while the target is there.
  int error() const { return error_; }

 private:
  void draw_live();

  int fd_;
  ScreenKind kind_;
  bool coloured_;
  bool timestamps_ = false;
  bool waits_;  // the target can be full: a pipe, a terminal or a socket, not a file
  std::string buffer_;
  std::size_t written_ = 0;
  std::string live_;
  const void* live_owner_ = nullptr;
  int error_ = 0;
};

/// `text` cut after `width` characters (UTF-8; control sequences have no width).
std::string_view fit(std::string_view text, int width);

}  // namespace lockstep::launcher
