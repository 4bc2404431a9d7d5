#include "config_file.hpp"

#include <fmt/core.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

// Reading is all that is done with it.
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/toml.h>

#include "run_options.hpp"

namespace lockstep::launcher {

namespace {

int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

[[noreturn]] void refuse(const std::string& path, int line, const std::string& what) {
  throw UsageError(fmt::format("{}:{}: {}", path, line, what));
}

/// A value as it would be written on the command line.
std::string text_of(const toml::node& node, const std::string& path, const std::string& key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  refuse(path, line_of(node), fmt::format("{} must be a text, a number, true or false", key));
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw UsageError(fmt::format("--config-file: cannot read {}: {}", path, ::strerror(errno != 0 ? errno : EIO)));
  }
  return text.str();
}

}  // namespace

ConfigFile read_config_file(const std::string& path) {
  toml::table root;
  try {
    root = toml::parse(read_whole(path), path);
  } catch (const toml::parse_error& error) {
    refuse(path, static_cast<int>(error.source().begin.line), fmt::format("not TOML: {}", error.description()));
  }
  ConfigFile result;
  for (const auto& [name, node] : root) {
    std::string key(name.str());
    if (key == "environment" && node.is_table()) {
      for (const auto& [variable, value] : *node.as_table()) {
        const std::string setting(variable.str());
        result.environment.push_back(setting + "=" + text_of(value, path, setting));
      }
    } else if (node.is_table()) {
      refuse(path, line_of(node),
             fmt::format("there is no table [{}]; options stand at the top, settings for the "
                         "ranks in [environment]",
                         key));
    } else {
      std::replace(key.begin(), key.end(), '_', '-');
      result.options.push_back({key, text_of(node, path, key), line_of(node)});
    }
  }
  return result;
}

}  // namespace lockstep::launcher
