// What ranks must agree on, and how to say so when they do not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "collective/call.hpp"
#include "lockstep/types.hpp"
#include "transport/notice.hpp"

namespace lockstep::negotiation {

/// Fills in type, shape, memory order and name. Throws Error(invalid_argument) when the tensor is not dense, has too
/// many dimensions, or is cut by rows but does not lie row after row.
transport::NoticeDetail describe(collective::Kind kind, const TensorView& tensor);

/// Equal exactly when ranks agree (up to hash collisions of 64 bits). What each rank may choose for itself, such as the
/// number of rows that it gives to a gather, is left out.
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

/// Names the ranks that had no room in the heap for their part; nullopt when all had.
std::optional<std::string> no_room_text(const std::string& operation, std::span<const Statement> statements);

/// Rows and elements per row of a described tensor. A scalar is one row of one element.
std::int64_t rows_of(const transport::NoticeDetail& detail);
std::size_t row_elements_of(const transport::NoticeDetail& detail);
std::size_t bytes_of(const transport::NoticeDetail& detail);

}  // namespace lockstep::negotiation
