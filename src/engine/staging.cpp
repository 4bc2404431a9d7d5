#include "engine/staging.hpp"

#include <fmt/format.h>

#include <cstring>

#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

using collective::Kind;
using transport::kNowhere;

bool gives(const Request& request, int rank) {
  switch (request.kind) {
    case Kind::barrier:
    case Kind::join:
    case Kind::new_group:
    case Kind::end_step:
    case Kind::bucket:
    case Kind::receive:
      return false;
    case Kind::broadcast:
    case Kind::scatter:
      return request.root == rank;
    default:
      return true;
  }
}

// Peers write into the outputs of these; everything else a rank fetches itself.
bool is_written_by_peers(const Request& request, int rank) {
  return request.kind == Kind::all_reduce || (request.kind == Kind::reduce && request.root == rank);
}

// Below this a copy that stays in the cache is cheaper than system calls into another process. Measured with
// benchmarks/all_reduce.py.
constexpr std::size_t kLeastPulled = 512 * 1024;

std::byte* copy_to_heap(const void* data, std::size_t bytes, const Operation& operation,
                        transport::SharedMemory& shared) {
  auto* block = static_cast<std::byte*>(shared.allocate(bytes));
  if (block == nullptr) {
    throw Error(
        ErrorCode::system,
        fmt::format("no room for {} bytes of {} '{}' in the shared heap. Raise LOCKSTEP_HEAP_BYTES, or work in smaller "
                    "pieces.",
                    bytes, name_of(operation.request.kind), operation.request.input.name));
  }
  std::memcpy(block, data, bytes);
  return block;
}

}  // namespace

transport::Place place_of(const void* data, std::size_t bytes, transport::SharedMemory& shared) {
  const transport::Place place = shared.place_of(data, bytes);
  return place == kNowhere && bytes >= kLeastPulled ? shared.private_place(data) : place;
}

void stage(Operation& operation, transport::Transport& transport) {
  const Request& request = operation.request;
  const int rank = transport.rank();
  if (!gives(request, rank)) return;
  transport::NoticeHead& head = operation.notice.head;
  const std::size_t bytes = request.input.bytes();
  if (bytes > 0 && bytes <= transport::kInlineBytes && request.kind != Kind::all_to_all) {
    head.inline_bytes = static_cast<std::uint16_t>(bytes);
    std::memcpy(head.inline_data, request.input.data, bytes);
    return;
  }
  transport::SharedMemory* shared = transport.shared();
  if (shared == nullptr) return;
  if (request.kind == Kind::all_to_all) {
    const std::size_t table = request.splits.size() * sizeof(std::int64_t);
    operation.staged_splits = copy_to_heap(request.splits.data(), table, operation, *shared);
    head.output = shared->place_of(operation.staged_splits, table);
  }
  if (bytes == 0) return;
  if (request.kind == Kind::all_reduce && bytes <= transport::kOfferedBytes) {
    operation.staged = copy_to_heap(request.input.data, bytes, operation, *shared);
    head.input = shared->place_of(operation.staged, bytes);
    head.flags |= transport::kCopied;
    return;
  }
  head.input = place_of(request.input.data, bytes, *shared);
  const bool written = is_written_by_peers(request, rank);
  const transport::Place output = written ? place_of(request.output.data, bytes, *shared) : kNowhere;
  if (head.input == kNowhere || (written && output == kNowhere)) {
    try {
      operation.staged = copy_to_heap(request.input.data, bytes, operation, *shared);
    } catch (const Error&) {
      drop_staged(operation, transport);
      throw;
    }
    head.input = shared->place_of(operation.staged, bytes);
    if (written) head.output = head.input;
  } else if (written) {
    head.output = output;
  }
}

void unstage(Operation& operation, transport::Transport& transport) {
  const Request& request = operation.request;
  const bool copied = (operation.notice.head.flags & transport::kCopied) != 0;
  if (operation.staged != nullptr && !copied && is_written_by_peers(request, transport.rank())) {
    std::memcpy(request.output.data, operation.staged, request.output.bytes());
  }
}

void drop_staged(Operation& operation, transport::Transport& transport) {
  for (std::byte** block : {&operation.staged, &operation.staged_splits}) {
    if (*block != nullptr) transport.shared()->deallocate(*block);
    *block = nullptr;
  }
}

void describe_party(collective::Party& party, const transport::NoticeRef& notice, const Operation& own,
                    transport::SharedMemory* shared) {
  const transport::NoticeHead& head = *notice.head;
  const auto kind = static_cast<Kind>(head.kind);
  if (notice.offer != nullptr) {
    party.scratch = notice.offer->scratch;
  } else if (shared != nullptr) {
    party.scratch = shared->scratch(party.rank, notice.position);
  }
  party.rows = negotiation::rows_of(*notice.detail);
  if (kind == Kind::all_to_all && notice.head == &own.notice.head) party.splits = own.request.splits.data();
  if (head.inline_bytes > 0) {
    party.input = notice.offer != nullptr ? notice.offer->data : head.inline_data;
    party.carried = party.copied = true;
    return;
  }
  party.copied = (head.flags & transport::kCopied) != 0;
  if (shared == nullptr) return;
  party.input_place = head.input;
  if (head.input != kNowhere) party.input = shared->at(party.rank, head.input);
  if (head.output == kNowhere) return;
  if (kind == Kind::all_to_all) {
    party.splits = reinterpret_cast<const std::int64_t*>(shared->at(party.rank, head.output));
  } else if (kind == Kind::all_reduce || kind == Kind::reduce) {
    party.output_place = head.output;
    party.output = shared->at(party.rank, head.output);
  }
}

std::byte* make_output(Operation& operation, const transport::NoticeDetail& like, std::int64_t rows) {
  const Request& request = operation.request;
  TensorView& result = operation.result;
  result = request.output;
  result.dtype = request.input.dtype;
  std::vector<std::int64_t> shape(like.shape, like.shape + like.ndim);
  const auto kind = request.kind;
  const bool keeps_shape = kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast ||
                           kind == Kind::send || kind == Kind::receive;
  if (!keeps_shape || rows == 0) {
    if (shape.empty()) shape.push_back(0);
    shape.front() = rows;
  }
  if (request.output.data != nullptr) {
    if (rows != 0 || kind == Kind::all_gather || kind == Kind::all_to_all) {
      std::int64_t elements = 1;
      for (auto extent : shape) elements *= extent;
      if (elements != request.output.elements()) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the result of {} '{}' has shape [{}], but the output given has [{}]", name_of(kind),
                                request.input.name, fmt::join(shape, ", "), fmt::join(request.output.shape, ", ")));
      }
    }
    return static_cast<std::byte*>(request.output.data);
  }
  result.shape = std::move(shape);
  result.strides.clear();
  constexpr std::size_t kAlignment = 64;
  const std::size_t bytes = (result.bytes() / kAlignment + 1) * kAlignment;
  operation.memory =
      std::shared_ptr<std::byte[]>(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kAlignment))),
                                   [](std::byte* block) { ::operator delete[](block, std::align_val_t(kAlignment)); });
  result.data = operation.memory.get();
  return operation.memory.get();
}

}  // namespace lockstep::engine
