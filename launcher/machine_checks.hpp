// What `lockstep doctor` looks at on this machine, without starting anything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "finding.hpp"

namespace lockstep::launcher {

std::vector<Finding> check_machine();

/// What the limits and figures of a machine mean for a job. Apart from the reading of them, for tests.
Finding judge_memory(std::size_t machine_bytes, std::optional<std::size_t> left_in_group,
                     std::optional<std::size_t> address_space);
Finding judge_open_files(std::size_t soft, std::size_t hard);
/// `setting` is the file's content, such as "always within_size advise [never] deny force".
Finding judge_huge_pages(const std::string& setting);
/// `denied`: errno of the attempt, or 0. `scope`: kernel.yama.ptrace_scope, if there is one.
Finding judge_reading_of_peers(int denied, std::optional<int> scope);

}  // namespace lockstep::launcher
