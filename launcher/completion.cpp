#include "completion.hpp"

#include <fmt/format.h>

namespace lockstep::launcher {

namespace {

// Bash has split the line at = and : too. A word that is no option, and no value of one, is the program: from there on
// the line is that program's, and bash completes it as it completes files.
constexpr const char* kScript = R"(# Completion of lockstep for bash.
_lockstep() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} options= with_value= takes_program= i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{commands} --help --version' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}    *) return 0 ;;
  esac
  for ((i = 2; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* && ${{COMP_WORDS[i]}} != -- ]] || return 0
    [[ " $with_value " == *" ${{COMP_WORDS[i]}} "* ]] || continue
    if [[ ${{COMP_WORDS[i + 1]}} == = ]]; then ((++i)); fi
    ((++i))
  done
  if ((i > COMP_CWORD)); then
    [[ $current != = ]] || current=
    case ${{COMP_WORDS[COMP_CWORD - 1]/#=/${{COMP_WORDS[COMP_CWORD - 2]}}}} in
{values}    esac
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ $takes_program ]]; then
    COMPREPLY=($(compgen -c -- "$current"))
  fi
}}
complete -o default -F _lockstep lockstep
)";

std::string case_of(const CommandText& command) {
  std::vector<std::string> names;
  std::vector<std::string> with_value;
  for (const OptionText& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
    if (!option.value.empty()) with_value.insert(with_value.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("    {}) options='{}' with_value='{}' takes_program={} ;;\n", command.name, fmt::join(names, " "),
                     fmt::join(with_value, " "), command.takes_program ? "1" : "");
}

std::string values_of(const CommandText& command) {
  std::string result;
  for (const OptionText& option : command.options) {
    if (option.choices.empty()) continue;
    result += fmt::format("      {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")) ;;\n",
                          fmt::join(option.names, " | "), fmt::join(option.choices, " "));
  }
  return result;
}

}  // namespace

std::string bash_completion(const std::vector<CommandText>& commands) {
  std::vector<std::string> names;
  std::string cases;
  std::string values;
  for (const CommandText& command : commands) {
    names.push_back(command.name);
    cases += case_of(command);
    values += values_of(command);
  }
  return fmt::format(kScript, fmt::arg("commands", fmt::join(names, " ")), fmt::arg("cases", cases),
                     fmt::arg("values", values));
}

}  // namespace lockstep::launcher
