#include "engine/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/hash.hpp"
#include "collective/reduce_kernel.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

bool is_pair(Kind kind) { return kind == Kind::send || kind == Kind::receive; }
bool has_tensor(Kind kind) {
  return kind != Kind::barrier && kind != Kind::join && kind != Kind::new_group && kind != Kind::end_step;
}
bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter;
}
// The result has the shape of the input, and may lie where the input lies.
bool keeps_shape(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast; }

void check_memory(const TensorView& tensor, const char* which, bool needed = true) {
  if (tensor.device != Device::cpu) refuse(fmt::format("tensor '{}' is not on the CPU", tensor.name));
  if (needed && tensor.bytes() > 0 && tensor.data == nullptr) {
    refuse(fmt::format("{} tensor '{}' has {} bytes but no memory", which, tensor.name, tensor.bytes()));
  }
}

void check_overlap(const Request& request) {
  if (request.kind == Kind::receive) return;  // its input only says what is expected
  const TensorView& input = request.input;
  const TensorView& output = request.output;
  const auto* first = static_cast<const std::byte*>(input.data);
  const auto* second = static_cast<const std::byte*>(output.data);
  const bool may_be_same = keeps_shape(request.kind) && request.result_dtype() == input.dtype;
  if (first == nullptr || second == nullptr || (first == second && may_be_same)) return;
  if (first < second + output.bytes() && second < first + request.input_bytes()) {
    refuse(fmt::format("input and output of '{}' overlap; pass {}two tensors apart", input.name,
                       may_be_same ? "the same memory or " : ""));
  }
}

void check_splits(const Request& request) {
  const std::int64_t rows = request.input.shape.empty() ? 1 : request.input.shape.front();
  const bool negative =
      std::any_of(request.splits.begin(), request.splits.end(), [](std::int64_t count) { return count < 0; });
  const std::int64_t total = std::accumulate(request.splits.begin(), request.splits.end(), std::int64_t{0});
  if (negative || request.splits.size() != request.group->ranks.size() || total != rows) {
    refuse(
        fmt::format("all-to-all of '{}': splits [{}] must be one number per rank ({}), none negative, {} rows in all",
                    request.input.name, fmt::join(request.splits, ", "), request.group->ranks.size(), rows));
  }
}

// What is promised of leaves, that the result does not depend on who owns them, must not be lost in the partial sums.
void check_leaves(const Request& request) {
  const DType dtype = request.input.dtype;
  if (partial_type(dtype) != dtype) {
    refuse(fmt::format("partial sums of '{}' are {}: give them as float32, which is rounded once, at the end",
                       request.input.name, name_of(dtype)));
  }
  const bool narrow_integer = dtype < DType::u64 && dtype != DType::boolean;
  if (request.op == ReduceOp::average && narrow_integer) {
    refuse(fmt::format("an average of {} (tensor '{}') is summed in 64 bits: give 64-bit partial sums", name_of(dtype),
                       request.input.name));
  }
  if (request.prescale != 1.0) {
    refuse(fmt::format("partial sums of '{}' cannot be prescaled, only their leaves (sum_leaves does it)",
                       request.input.name));
  }
}

void check_reduction(const Request& request) {
  const TensorView& input = request.input;
  if (!collective::is_defined(input.dtype, request.op)) {
    refuse(fmt::format("{} of {} (tensor '{}') is not defined", name_of(request.op), name_of(input.dtype), input.name));
  }
  if (!collective::converts(input.dtype, request.result_dtype())) {
    refuse(fmt::format("'{}' cannot be reduced from {} to {}: only float32 to a 16-bit type of float, and back",
                       input.name, name_of(input.dtype), name_of(request.result_dtype())));
  }
  if (input.dtype == DType::boolean && (request.prescale != 1.0 || request.postscale != 1.0)) {
    refuse(fmt::format("tensor '{}' is of type bool and cannot be scaled", input.name));
  }
  if (request.kind == Kind::reduce_scatter && input.shape.empty())
    refuse(fmt::format("reduce-scatter of '{}': a scalar has no rows to cut", input.name));
  if (request.leaves.total != 0) check_leaves(request);
  const bool simple = request.leaves.total == 0 && request.result_dtype() == input.dtype && !request.epilogue;
  if (request.op == ReduceOp::adasum && (request.kind != Kind::all_reduce || !simple)) {
    refuse(
        fmt::format("Adasum of '{}': it is for all-reduce only, without leaves, result type or epilogue", input.name));
  }
}

}  // namespace

void take_partials(Request& request, const LeafRange& leaves) {
  TensorView& input = request.input;
  const std::size_t blocks = leaf_blocks(leaves).size();
  if (input.shape.empty() || input.shape.front() != static_cast<std::int64_t>(blocks)) {
    refuse(
        fmt::format("{} of '{}': leaves {} to {} of {} are {} partial sums, so the input must have a first dimension "
                    "of that extent; its shape is [{}]",
                    name_of(request.kind), input.name, leaves.first, leaves.first + leaves.count - 1, leaves.total,
                    blocks, fmt::join(input.shape, ", ")));
  }
  input.shape.erase(input.shape.begin());
  if (!input.strides.empty()) {
    if (blocks > 1 && input.strides.front() != input.elements()) {
      refuse(fmt::format("partial sums of '{}' must lie one after another, without gaps", input.name));
    }
    input.strides.erase(input.strides.begin());
  }
  request.leaves = leaves;
  request.partials = blocks;
}

bool is_plain(const Request& request) {
  return request.leaves.total == 0 && request.result_dtype() == request.input.dtype && !request.epilogue &&
         request.op != ReduceOp::adasum;
}

void complete_request(Request& request, int rank) {
  if (is_pair(request.kind)) {
    request.root = request.kind == Kind::send ? rank : request.partner;
    request.receiver = request.kind == Kind::send ? request.partner : rank;
  }
  if (request.kind != Kind::all_to_all || !request.splits.empty()) return;
  const auto parts = static_cast<std::int64_t>(request.group->ranks.size());
  const std::int64_t rows = request.input.shape.empty() ? 1 : request.input.shape.front();
  if (rows % parts != 0) {
    refuse(fmt::format("all-to-all of '{}': {} rows do not divide evenly among {} ranks. Pass splits.",
                       request.input.name, rows, parts));
  }
  request.splits.assign(static_cast<std::size_t>(parts), rows / parts);
}

void check_request(const Request& request, int rank) {
  const TensorView& input = request.input;
  const auto& members = *request.group;
  if (!members.index_of(rank)) {
    refuse(fmt::format("{} '{}': rank {} does not belong to the group [{}]", name_of(request.kind), input.name, rank,
                       fmt::join(members.ranks, ", ")));
  }
  if (!has_tensor(request.kind)) return;
  if (is_pair(request.kind) && (request.partner == rank || !members.index_of(request.partner))) {
    refuse(fmt::format("{}: there is no other rank {} in the group", name_of(request.kind), request.partner));
  }
  if (has_root(request.kind) && !members.index_of(request.root)) {
    refuse(fmt::format("{} of '{}': root {} is not a rank of the group; it has [{}]", name_of(request.kind), input.name,
                       request.root, fmt::join(members.ranks, ", ")));
  }
  const bool gives = request.kind != Kind::receive && (request.kind != Kind::scatter || request.root == rank);
  if (gives) check_memory(input, "input", request.partials > 0);
  const bool takes = request.kind == Kind::all_reduce || request.kind == Kind::broadcast ||
                     (request.kind == Kind::reduce && request.root == rank);
  if (takes) {
    const TensorView& output = request.output;
    if (input.shape != output.shape || request.result_dtype() != output.dtype || input.strides != output.strides) {
      refuse(fmt::format("input and output of '{}' must have the same type, shape and strides", input.name));
    }
    check_memory(output, "output");
  } else if (request.output.data != nullptr) {
    if (request.output.dtype != request.result_dtype())
      refuse(fmt::format("input and output of '{}' must have the same type", input.name));
    check_memory(request.output, "output");
  }
  check_overlap(request);
  if (is_reduction(request.kind)) check_reduction(request);
  if (request.kind == Kind::all_to_all) check_splits(request);
}

void announce_in(transport::Notice& notice, const Request& request) {
  notice.detail = negotiation::describe(request.kind, request.input);
  notice.detail.root = request.root;
  notice.detail.tag = request.tag;
  if (is_reduction(request.kind)) {
    notice.detail.op = static_cast<std::int32_t>(request.op);
    notice.detail.prescale = request.prescale;
    notice.detail.postscale = request.postscale;
    notice.detail.by_contributors = request.by_contributors ? 1 : 0;
    notice.detail.result_dtype = static_cast<std::int32_t>(request.result_dtype());
    notice.detail.has_epilogue = request.epilogue ? 1 : 0;
    notice.detail.packed = request.pack ? request.pack->tensors.size() : 0;
    notice.detail.packed_hash = request.pack_hash;
    notice.detail.total_leaves = request.leaves.total;
    notice.detail.first_leaf = request.leaves.first;
    notice.detail.leaf_count = request.leaves.count;
  }
  notice.head.kind = static_cast<std::uint8_t>(request.kind);
  notice.head.group = is_pair(request.kind) ? negotiation::kWorld : request.group->id;
  notice.head.signature = negotiation::signature_of(notice.detail);
  if (is_pair(request.kind)) notice.head.output = static_cast<transport::Place>(request.partner);
}

bool counts_by_order(const Request& request) {
  return request.input.name.empty() && !is_pair(request.kind) && request.kind != Kind::join &&
         request.kind != Kind::new_group && request.kind != Kind::end_step;
}

std::uint64_t identity_by_order(negotiation::GroupId group, std::uint64_t joins, std::uint64_t order) {
  const std::uint64_t words[] = {group, joins, order};
  Hasher id;
  id.add(words, sizeof words);
  return id.value();
}

std::uint64_t identity_by_name(NameKey key, std::uint64_t joins, fusion::Step step, std::uint64_t use) {
  const std::uint64_t words[] = {key, joins, step, use};
  Hasher id;
  id.add(words, sizeof words);
  return id.value();
}

NameKey name_key_in_world(std::string_view name) {
  static const std::uint64_t series = [] {
    const std::uint32_t words[4] = {};
    Hasher key;
    key.add(words, sizeof words);
    return key.value();
  }();
  Hasher key(series);
  key.add(name.data(), name.size());
  return key.value();
}

NameKey name_key(const Request& request) {
  const bool pair = is_pair(request.kind);
  const bool unnamed = pair || request.kind == Kind::join || request.kind == Kind::new_group;
  const std::uint32_t words[] = {
      pair      ? static_cast<std::uint32_t>(Kind::send)
      : unnamed ? static_cast<std::uint32_t>(request.kind)
                : 0,
      pair ? static_cast<std::uint32_t>(request.root) : request.group->id,
      pair ? static_cast<std::uint32_t>(request.receiver) : 0,
      pair ? static_cast<std::uint32_t>(request.tag) : 0,
  };
  Hasher key;
  key.add(words, sizeof words);
  if (!unnamed) key.add(request.input.name.data(), request.input.name.size());
  return key.value();
}

bool is_world(const negotiation::MembersPtr& group) { return group == nullptr || group->id == negotiation::kWorld; }

negotiation::MembersPtr pair_of(int one, int other) {
  return std::make_shared<const negotiation::Members>(
      negotiation::Members{negotiation::kWorld, {std::min(one, other), std::max(one, other)}});
}

negotiation::MembersPtr members_of(const Request& request, int rank) {
  return is_pair(request.kind) ? pair_of(rank, request.partner) : request.group;
}

}  // namespace lockstep::engine
