// How much memory this process may still use before the kernel ends it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace lockstep {

/// What is left under the memory limits of this process's control groups (version 1 or 2, all levels), counting cached
/// files as free. nullopt: there is no limit, or it cannot be read. `root` is where the file system begins, for tests.
std::optional<std::size_t> memory_left(const std::string& root = "");

}  // namespace lockstep
