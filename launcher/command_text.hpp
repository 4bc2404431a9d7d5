// What the commands of the program are and take, as data: the manual page and the completion are made of it, and it is
// read from the parsers themselves, so that neither can fall behind.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::launcher {

struct OptionText {
  std::vector<std::string> names;         ///< as they are typed: "-n", "-np", "--num-proc"
  std::string value;                      ///< "FILE"; empty: a flag
  std::vector<std::string> choices = {};  ///< all that the value can be; empty: anything
  std::string description;
};

struct CommandText {
  std::string name;         ///< "run"
  std::string usage;        ///< "lockstep run -np N [OPTIONS] PROGRAM [ARGUMENTS...]"
  std::string description;  ///< one or more paragraphs, with an empty line between them
  std::vector<OptionText> options = {};
  std::string notes = {};      ///< more paragraphs, after the options; indented lines are shown as they are
  bool takes_program = false;  ///< what follows the options is a command line of its own
};

/// Those that the parser shows in its help.
std::vector<OptionText> option_texts(const CLI::App& app);

}  // namespace lockstep::launcher
