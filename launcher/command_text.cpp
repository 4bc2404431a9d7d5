#include "command_text.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace lockstep::launcher {

std::vector<OptionText> option_texts(const CLI::App& app) {
  std::vector<OptionText> result;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    OptionText text;
    for (const std::string& name : option->get_snames()) text.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) text.names.push_back("--" + name);
    if (option->get_items_expected_max() > 0) {
      const std::string value = option->get_type_name();
      text.value = value.substr(0, value.find(':'));  // after it stands what the validators say
    }
    text.description = option->get_description();
    result.push_back(std::move(text));
  }
  return result;
}

}  // namespace lockstep::launcher
