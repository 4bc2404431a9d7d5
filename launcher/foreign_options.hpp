// Options of horovodrun and torchrun that `lockstep run` understands, so that habits and scripts keep working.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace lockstep::launcher {

struct ForeignOption {
  enum class Kind {
    setting,    ///< becomes the environment variable `target` of every rank
    no_effect,  ///< chooses what Lockstep does by itself: accepted, and said so
    refused,    ///< asks for what is not there: `target` says what to do instead
  };

  const char* name;  ///< with dashes; several are separated by commas
  bool takes_value;
  Kind kind;
  const char* target = nullptr;
};

std::span<const ForeignOption> foreign_options();

/// The value of the variable `target` for what was written after the option; nothing when it stands for the default.
std::optional<std::string> setting_value(const ForeignOption& option, const std::string& written);

}  // namespace lockstep::launcher
