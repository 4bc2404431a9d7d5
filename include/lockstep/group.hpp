// A subset of the ranks (Horovod: process set).
#pragma once

#include <memory>
#include <vector>

#include "lockstep/export.hpp"

namespace lockstep {

namespace negotiation {
struct Members;
}  // namespace negotiation

/// Made by `Engine::make_group`; cheap to copy. A default-made one means the world. Ranks keep their numbers of the
/// world, also as roots and partners; their order in the group is the order of those numbers.
class LOCKSTEP_API Group {
 public:
  Group() = default;
  explicit Group(std::shared_ptr<const negotiation::Members> members) : members_(std::move(members)) {}

  /// Empty for the world.
  const std::vector<int>& ranks() const;

  const std::shared_ptr<const negotiation::Members>& members() const { return members_; }

 private:
  std::shared_ptr<const negotiation::Members> members_;
};

}  // namespace lockstep
