// The config file of `lockstep run`: its long options as keys, and a table with settings for the ranks.
//
//     num-proc = 4
//     output = "logs"
//     [environment]
//     LOCKSTEP_LOG = "info"
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::launcher {

struct ConfigFile {
  struct Entry {
    std::string key;    ///< with dashes
    std::string value;  ///< as it would be written on the command line
    int line;
  };
  std::vector<Entry> options;
  std::vector<std::string> environment;  ///< NAME=value
};

/// Throws UsageError, which names the file and the line.
ConfigFile read_config_file(const std::string& path);

}  // namespace lockstep::launcher
