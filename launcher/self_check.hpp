// The self-test of `lockstep doctor`: two ranks of this very program, which load the engine and add numbers with it.
#pragma once

#include <chrono>
#include <string>

#include "finding.hpp"

namespace lockstep::launcher {

/// The hidden command that the ranks run. Returns the exit code.
inline constexpr const char* kSelfTestRank = "self-test-rank";
int run_self_test_rank(const std::string& library);

/// What such a library says of its version; empty when it cannot be loaded, with the reason in `error`.
std::string version_of_library(const std::string& path, std::string& error);

/// Starts `program run -np 2 program self-test-rank LIBRARY` and judges it. Not longer than `at_most`.
Finding run_self_test(const std::string& program, const std::string& library, std::chrono::milliseconds at_most);

}  // namespace lockstep::launcher
