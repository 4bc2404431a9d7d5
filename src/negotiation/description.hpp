// What ranks must agree on, and how to say so when they do not.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collective/call.hpp"
#include "lockstep/types.hpp"
#include "transport/notice.hpp"

namespace lockstep::negotiation {

/// Fills in shape, memory order and name. Throws Error(invalid_argument) when the tensor is not dense or has too many
/// dimensions.
transport::NoticeDetail describe(collective::Kind kind, const TensorView& tensor, ReduceOp op, int root);

/// Equal exactly when ranks agree (up to hash collisions of 64 bits).
std::uint64_t signature_of(const transport::NoticeDetail& detail);

/// "all-reduce (sum) of float32 [128, 10]"
std::string text_of(const transport::NoticeDetail& detail);

/// "'fc1.weight'", or "number 17 (no name)".
std::string name_text(const std::string& name, std::uint64_t order);

struct Statement {
  int rank;
  const transport::NoticeDetail* detail;
};

/// Says which rank had what, ranks that agree together.
std::string disagreement_text(const std::string& name, std::span<const Statement> statements);

}  // namespace lockstep::negotiation
