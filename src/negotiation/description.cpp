#include "negotiation/description.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "base/hash.hpp"
#include "lockstep/error.hpp"

namespace lockstep::negotiation {
namespace {

using collective::Kind;
using transport::NoticeDetail;

// Dimensions from outermost to innermost in memory, four bits each. Throws unless the elements lie without gaps.
std::uint32_t memory_order(const TensorView& tensor) {
  const std::size_t n = tensor.shape.size();
  if (tensor.strides.empty()) {
    std::uint32_t row_major = 0;
    for (std::size_t i = 0; i < n; ++i) row_major |= static_cast<std::uint32_t>(i) << (4 * i);
    return row_major;
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (tensor.strides.size() != n) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor '{}' has {} dimensions but {} strides", tensor.name, n, tensor.strides.size()));
  }
  // Dimensions of extent 1 may have any stride; they keep their place.
  std::vector<std::size_t> real;
  for (std::size_t d : order) {
    if (tensor.shape[d] != 1) real.push_back(d);
  }
  std::stable_sort(real.begin(), real.end(), [&](auto a, auto b) { return tensor.strides[a] > tensor.strides[b]; });
  std::int64_t expected = 1;
  for (auto d = real.rbegin(); d != real.rend(); ++d) {
    if (tensor.strides[*d] != expected && tensor.elements() > 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("tensor '{}' of shape [{}] with strides [{}] has gaps or overlaps in memory. Pass a dense tensor "
                      "(PyTorch: tensor.contiguous()).",
                      tensor.name, fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", ")));
    }
    expected *= tensor.shape[*d];
  }
  auto next = real.begin();
  for (auto& d : order) {
    if (tensor.shape[d] != 1) d = *next++;
  }
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < n; ++i) code |= static_cast<std::uint32_t>(order[i]) << (4 * i);
  return code;
}

bool has_tensor(Kind kind) {
  return kind != Kind::barrier && kind != Kind::join && kind != Kind::new_group && kind != Kind::end_step;
}

bool has_own_rows(Kind kind) { return kind == Kind::all_gather || kind == Kind::gather || kind == Kind::all_to_all; }

bool is_cut_by_rows(Kind kind) { return has_own_rows(kind) || kind == Kind::scatter || kind == Kind::reduce_scatter; }

bool is_row_major(const NoticeDetail& detail) {
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(detail.ndim); ++i) {
    if (((detail.order >> (4 * i)) & 0xF) != i) return false;
  }
  return true;
}

std::string shape_text(const NoticeDetail& detail) {
  std::string text = fmt::format("[{}]", fmt::join(detail.shape, detail.shape + detail.ndim, ", "));
  if (!is_row_major(detail)) {
    std::vector<std::uint32_t> order;
    for (int i = 0; i < detail.ndim; ++i) order.push_back((detail.order >> (4 * i)) & 0xF);
    text += fmt::format(" with dimensions in memory order ({})", fmt::join(order, ", "));
  }
  return text;
}

}  // namespace

NoticeDetail describe(Kind kind, const TensorView& tensor) {
  NoticeDetail detail;
  detail.kind = static_cast<std::int32_t>(kind);
  const std::size_t name_length = std::min<std::size_t>(tensor.name.size(), NoticeDetail::kNameBytes - 1);
  std::memcpy(detail.name, tensor.name.data(), name_length);
  if (!has_tensor(kind)) return detail;
  if (tensor.shape.size() > NoticeDetail::kMaxDims) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor '{}' has {} dimensions; at most {} are supported. Reshape it first.", tensor.name,
                            tensor.shape.size(), NoticeDetail::kMaxDims));
  }
  for (std::int64_t extent : tensor.shape) {
    if (extent < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor '{}' has a negative extent in [{}]", tensor.name, fmt::join(tensor.shape, ", ")));
    }
  }
  detail.dtype = static_cast<std::int32_t>(tensor.dtype);
  detail.ndim = static_cast<std::int32_t>(tensor.shape.size());
  detail.order = memory_order(tensor);
  std::copy(tensor.shape.begin(), tensor.shape.end(), detail.shape);
  if (is_cut_by_rows(kind) && detail.ndim > 0 && (detail.order & 0xF) != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} of '{}': its first dimension is not the outermost in memory. Pass a contiguous tensor.",
                            collective::name_of(kind), tensor.name));
  }
  return detail;
}

std::uint64_t signature_of(const NoticeDetail& given) {
  NoticeDetail detail = given;
  const auto kind = static_cast<Kind>(detail.kind);
  // Both sides of a pair mean the same operation.
  if (kind == Kind::receive) detail.kind = static_cast<std::int32_t>(Kind::send);
  if (has_own_rows(kind)) detail.shape[0] = -1;
  if (has_own_rows(kind) && detail.ndim == 0) detail.ndim = 1;  // a scalar counts as one row
  if (kind == Kind::scatter) {                                  // only the root has a tensor to describe
    detail.ndim = 0;
    detail.order = 0;
    std::fill(std::begin(detail.shape), std::end(detail.shape), 0);
  }
  // Everything before the name, which is not a part of the agreement: it decides who meets whom.
  Hasher hasher;
  hasher.add(&detail, offsetof(NoticeDetail, name));
  return hasher.value();
}

std::string text_of(const NoticeDetail& detail) {
  const auto kind = static_cast<Kind>(detail.kind);
  if (!has_tensor(kind)) return collective::name_of(kind);
  std::string text = collective::name_of(kind);
  if (collective::is_reduction(kind)) text += fmt::format(" ({})", name_of(static_cast<ReduceOp>(detail.op)));
  text += fmt::format(" of {} {}", name_of(static_cast<DType>(detail.dtype)), shape_text(detail));
  if (detail.root >= 0) {
    const bool takes = kind == Kind::reduce || kind == Kind::gather;
    text += fmt::format(" {} rank {}", takes ? "to" : "from", detail.root);
  }
  if (detail.by_contributors != 0) text += ", divided by contributors";
  if (detail.prescale != 1.0) text += fmt::format(", prescale {}", detail.prescale);
  if (detail.postscale != 1.0) text += fmt::format(", postscale {}", detail.postscale);
  if (!collective::is_reduction(kind)) return text;
  if (detail.total_leaves != 0) text += fmt::format(", over {} leaves", detail.total_leaves);
  if (detail.result_dtype != detail.dtype) {
    text += fmt::format(", rounded to {}", name_of(static_cast<DType>(detail.result_dtype)));
  }
  if (detail.has_epilogue != 0) text += ", with an epilogue";
  if (detail.packed != 0) {
    text +=
        fmt::format(", {} tensors in one (names, shapes and layouts {:08x})", detail.packed, detail.packed_hash >> 32);
  }
  return text;
}

std::string name_text(const std::string& name, std::uint64_t order) {
  return name.empty() ? fmt::format("number {} (no name)", order) : fmt::format("'{}'", name);
}

std::string disagreement_text(const std::string& name, std::span<const Statement> statements) {
  std::vector<std::pair<std::string, std::vector<int>>> versions;
  for (const Statement& statement : statements) {
    const std::string text = text_of(*statement.detail);
    auto same =
        std::find_if(versions.begin(), versions.end(), [&](const auto& version) { return version.first == text; });
    if (same == versions.end()) same = versions.insert(versions.end(), {text, {}});
    same->second.push_back(statement.rank);
  }
  std::string text = fmt::format("ranks disagree about operation {}:", name);
  for (const auto& [version, ranks] : versions) {
    text += fmt::format(" {} {}: {};", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), version);
  }
  text.back() = '.';
  return text +
         " Likely cause: the ranks run different code or see differently shaped data. Every rank must submit the same "
         "operation "
         "with the same shape, type and options under one name.";
}

std::optional<std::string> no_room_text(const std::string& operation, std::span<const Statement> statements) {
  std::vector<std::string> lacking;
  for (const Statement& statement : statements) {
    if (statement.detail->no_room == 0) continue;
    lacking.push_back(fmt::format("rank {} had no room for {} bytes", statement.rank, statement.detail->no_room));
  }
  if (lacking.empty()) return std::nullopt;
  return fmt::format(
      "{}: {} in the shared heap, and its peers cannot read its own memory instead. Raise "
      "LOCKSTEP_HEAP_BYTES or the memory limit of the job, or work in smaller pieces.",
      operation, fmt::join(lacking, ", "));
}

std::int64_t rows_of(const NoticeDetail& detail) { return detail.ndim == 0 ? 1 : detail.shape[0]; }

std::size_t row_elements_of(const NoticeDetail& detail) {
  std::size_t elements = 1;
  for (int i = 1; i < detail.ndim; ++i) elements *= static_cast<std::size_t>(detail.shape[i]);
  return elements;
}

std::size_t bytes_of(const NoticeDetail& detail) {
  return static_cast<std::size_t>(rows_of(detail)) * row_elements_of(detail) *
         size_of(static_cast<DType>(detail.dtype));
}

}  // namespace lockstep::negotiation
