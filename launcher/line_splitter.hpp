// Cuts a stream of bytes into lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launcher {

enum class LineEnd {
  newline,          ///< "\n" or "\r\n"
  carriage_return,  ///< a lone "\r": the writer is going to draw over this line, as progress bars do
  too_long,         ///< the line reached the limit; the next one continues it
  end_of_stream,    ///< the stream ended within the line
};

/// Feed it bytes in any portions; it calls back with each whole line, without its end.
/// Memory stays bounded: a line that reaches `limit` bytes is handed out in pieces.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t limit = std::size_t{1} << 20) : limit_(limit) {}

  /// `on_line` is called as on_line(std::string_view text, LineEnd end); the text is valid during the call only.
  template <typename OnLine>
  void feed(std::string_view data, OnLine&& on_line) {
    while (!data.empty()) {
      if (after_return_) {
        // Only now can "\r\n" be told from "\r".
        const bool newline = data.front() == '\n';
        after_return_ = false;
        give(on_line, newline ? LineEnd::newline : LineEnd::carriage_return);
        if (newline) data.remove_prefix(1);
        continue;
      }
      const std::size_t room = limit_ - line_.size();
      const std::size_t length = std::min(data.find_first_of("\r\n"), std::min(data.size(), room));
      line_.append(data.substr(0, length));
      data.remove_prefix(length);
      if (!data.empty() && (data.front() == '\r' || data.front() == '\n')) {
        if (data.front() == '\r') {
          after_return_ = true;
        } else {
          give(on_line, LineEnd::newline);
        }
        data.remove_prefix(1);
      } else if (line_.size() >= limit_) {
        give(on_line, LineEnd::too_long);
      }
    }
  }

  /// The stream is over: what is left becomes the last line.
  template <typename OnLine>
  void finish(OnLine&& on_line) {
    after_return_ = false;
    if (!line_.empty()) give(on_line, LineEnd::end_of_stream);
  }

  /// The line that has begun and not ended.
  std::string_view unfinished() const { return line_; }

 private:
  template <typename OnLine>
  void give(OnLine&& on_line, LineEnd end) {
    on_line(std::string_view(line_), end);
    line_.clear();
  }

  std::size_t limit_;
  std::string line_;
  bool after_return_ = false;
};

}  // namespace lockstep::launcher
