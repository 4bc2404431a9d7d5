#include "manual.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "lockstep/version.hpp"

namespace lockstep::launcher {

namespace {

/// Text in which nothing is a request or an escape. A hyphen that can be typed is not the one of a word.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  if (!result.empty() && (result.front() == '.' || result.front() == '\'')) result.insert(0, "\\&");
  return result;
}

/// Lines that are indented stay as they are; others are filled. An empty line ends a paragraph.
std::string paragraphs(const std::string& text) {
  std::string result = ".PP\n";
  bool verbatim = false;
  std::istringstream lines(text.substr(std::min(text.find_first_not_of('\n'), text.size())));
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.rfind("  ", 0) == 0;
    if (indented != verbatim) result += indented ? ".nf\n.RS\n" : ".RE\n.fi\n";
    verbatim = indented;
    result += line.empty() ? ".PP\n" : roff(indented ? line.substr(2) : line) + "\n";
  }
  return result + (verbatim ? ".RE\n.fi\n" : "");
}

std::string in_capitals(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string option_entry(const OptionText& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back("\\fB" + roff(name) + "\\fR");
  const std::string value = option.value.empty() ? "" : " \\fI" + roff(option.value) + "\\fR";
  return fmt::format(".TP\n{}{}\n{}\n", fmt::join(names, ", "), value, roff(option.description));
}

}  // namespace

std::string manual_page(const std::vector<CommandText>& commands) {
  std::string page = fmt::format(".TH LOCKSTEP 1 \"\" \"lockstep {}\" \"User Commands\"\n", version());
  page += ".SH NAME\nlockstep \\- start, watch and end the ranks of a distributed training job\n.SH SYNOPSIS\n.nf\n";
  for (const CommandText& command : commands) page += roff(command.usage) + "\n";
  page += ".fi\n";
  for (const CommandText& command : commands) {
    page += fmt::format(".SH LOCKSTEP {}\n", in_capitals(command.name));
    page += paragraphs(command.description);
    for (const OptionText& option : command.options) page += option_entry(option);
    if (!command.notes.empty()) page += paragraphs(command.notes);
  }
  return page + ".SH SEE ALSO\n.BR ssh (1)\n";
}

}  // namespace lockstep::launcher
