#include "engine/staging.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/log.hpp"
#include "collective/adasum_plan.hpp"
#include "collective/relay_pass.hpp"
#include "engine/request.hpp"
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

// A tiny tensor travels in the notice, unless ranks give different amounts, or one of them has to compute for all.
bool may_be_inline(const Request& request) { return request.kind != Kind::all_to_all && is_plain(request); }

// Over messages, a tensor that all others need whole goes along with the notice, since that takes one way through the
// network instead of three.
std::size_t most_attached(const Request& request, const transport::Transport& transport) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  if (request.group->ranks.size() != ranks || !may_be_inline(request)) return 0;  // otherwise strangers got it too
  const std::size_t most = transport.most_attached();
  if (request.kind == Kind::broadcast || request.kind == Kind::all_gather) return most;
  if (request.kind != Kind::all_reduce) return 0;
  return std::min(most, most_attached_sum(transport));
}

// nullptr when there is no room, which the notice then says.
std::byte* heap_block(std::size_t bytes, Operation& operation, transport::SharedMemory& shared) {
  auto* block = static_cast<std::byte*>(shared.allocate(bytes));
  if (block == nullptr) operation.notice.detail.no_room = bytes;
  return block;
}

// How long a rank may take after its start until it has tried to read its peers.
constexpr auto kPatienceWithReach = std::chrono::milliseconds(1000);

// The full heap is no reason to fail where peers can read and write this rank's own memory.
void leave_in_place(Operation& operation, std::size_t bytes, std::size_t result_bytes,
                    transport::Transport& transport) {
  const Request& request = operation.request;
  transport::SharedMemory& shared = *transport.shared();
  auto find = [&](const void* data, std::size_t size) {
    const transport::Place place = shared.place_of(data, size);
    return place == kNowhere ? shared.private_place(data, kPatienceWithReach) : place;
  };
  const transport::Place input = bytes > 0 ? find(request.input.data, bytes) : kNowhere;
  const transport::Place output = result_bytes > 0 ? find(request.output.data, result_bytes) : kNowhere;
  if ((bytes > 0 && input == kNowhere) || (result_bytes > 0 && output == kNowhere)) return;
  operation.notice.head.input = input;
  if (result_bytes > 0) operation.notice.head.output = output;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log::warn(transport.rank(), fmt::format("no room for {} bytes in the shared heap: such tensors are read where they "
                                            "are, which is slower. Raise LOCKSTEP_HEAP_BYTES or the memory limit.",
                                            operation.notice.detail.no_room));
  }
  operation.notice.detail.no_room = 0;
}

// One block for the input and the result. The result takes the input's place where each element of it needs only the
// elements at its own place there; otherwise it comes behind.
// False when there is no room.
bool stage_copy(Operation& operation, std::size_t bytes, std::size_t result_bytes, transport::SharedMemory& shared) {
  const Request& request = operation.request;
  transport::NoticeHead& head = operation.notice.head;
  constexpr std::size_t kLine = 128;
  const bool in_place = bytes >= result_bytes && request.result_dtype() == request.input.dtype;
  const std::size_t behind = in_place ? 0 : (bytes + kLine - 1) / kLine * kLine;
  operation.staged = heap_block(std::max(bytes, behind + result_bytes), operation, shared);
  if (operation.staged == nullptr) return false;
  if (bytes > 0) {
    std::memcpy(operation.staged, request.input.data, bytes);
    head.input = shared.place_of(operation.staged, bytes);
  }
  if (result_bytes > 0) {
    operation.staged_result = operation.staged + behind;
    head.output = shared.place_of(operation.staged_result, result_bytes);
  }
  return true;
}

// False when there is no room.
bool stage_relay(Operation& operation, std::size_t bytes, transport::SharedMemory& shared) {
  const std::size_t size = collective::relay_bytes(bytes);
  operation.staged = heap_block(size, operation, shared);
  if (operation.staged == nullptr) return false;
  operation.notice.head.input = shared.place_of(operation.staged, size);
  operation.notice.head.flags |= transport::kRelayed;
  return true;
}

}  // namespace

std::size_t most_attached_sum(const std::vector<std::size_t>& ranks_of_hosts, std::size_t bytes_per_trip) {
  const std::size_t hosts = ranks_of_hosts.size();
  std::size_t ranks = 0, fullest = 0;
  for (const std::size_t here : ranks_of_hosts) {
    ranks += here;
    fullest = std::max(fullest, here);
  }
  // Through the fullest host's port: of each rank there all of it to each elsewhere, instead of 2 (h-1)/h of it once.
  const std::size_t extra_parts = fullest * (ranks - fullest) * hosts - 2 * (hosts - 1);  // in h-ths
  return extra_parts == 0 ? std::numeric_limits<std::size_t>::max() : bytes_per_trip * hosts / extra_parts;
}

std::size_t most_attached_sum(const transport::Transport& transport) {
  constexpr std::size_t kUsualTrip = 32 * 1024;  // of loopback, and until the network is known
  std::vector<std::size_t> ranks_of_hosts;
  for (int rank = 0; rank < transport.size(); ++rank) {
    const auto host = static_cast<std::size_t>(transport.host_of(rank));
    if (host >= ranks_of_hosts.size()) ranks_of_hosts.resize(host + 1);
    ++ranks_of_hosts[host];
  }
  std::erase(ranks_of_hosts, 0U);
  // Ranks that share one and have nothing but connections are as far apart as if each had its own.
  if (ranks_of_hosts.size() == 1) ranks_of_hosts.assign(ranks_of_hosts.front(), 1);
  const std::size_t known = transport.bytes_per_trip();
  return most_attached_sum(ranks_of_hosts, known == 0 ? kUsualTrip : known);
}

std::string choice_text(const transport::Transport& transport) {
  const transport::Network network = transport.network();
  const std::size_t most = std::min(transport.most_attached(), most_attached_sum(transport));
  return fmt::format(
      "between hosts a round trip takes {:.3g} ms, and a port carries {:.3g} MB/s. All-reduce: up to {} bytes inside "
      "the "
      "notice, up to {} bytes attached to it, larger ones in slices",
      std::chrono::duration<double, std::milli>(network.trip).count(), network.rate / 1e6, transport::kInlineBytes,
      std::max(most, transport::kInlineBytes));
}

transport::Place place_of(const void* data, std::size_t bytes, transport::SharedMemory& shared) {
  const transport::Place place = shared.place_of(data, bytes);
  return place == kNowhere && bytes >= kLeastPulled ? shared.private_place(data) : place;
}

void stage(Operation& operation, transport::Transport& transport, Way way) {
  const Request& request = operation.request;
  const int rank = transport.rank();
  if (!gives(request, rank)) return;
  transport::NoticeHead& head = operation.notice.head;
  const std::size_t bytes = request.input_bytes();
  if (bytes > 0 && bytes <= transport::kInlineBytes && may_be_inline(request)) {
    head.inline_bytes = static_cast<std::uint16_t>(bytes);
    std::memcpy(head.inline_data, request.input.data, bytes);
    return;
  }
  if (bytes > 0 && bytes <= most_attached(request, transport)) {
    operation.attached = {static_cast<const std::byte*>(request.input.data), bytes};
    return;
  }
  transport::SharedMemory* shared = transport.shared();
  if (shared == nullptr) return;
  if (request.kind == Kind::all_to_all) {
    const std::size_t table = request.splits.size() * sizeof(std::int64_t);
    operation.staged_splits = heap_block(table, operation, *shared);
    if (operation.staged_splits == nullptr) return;
    std::memcpy(operation.staged_splits, request.splits.data(), table);
    head.output = shared->place_of(operation.staged_splits, table);
  }
  if (request.kind == Kind::all_reduce && bytes > 0 && bytes <= transport::kOfferedBytes && is_plain(request)) {
    operation.staged = heap_block(bytes, operation, *shared);
    if (operation.staged == nullptr) return;
    std::memcpy(operation.staged, request.input.data, bytes);
    head.input = shared->place_of(operation.staged, bytes);
    head.flags |= transport::kCopied;
    return;
  }
  if (is_reduction(request.kind) && request.op == ReduceOp::adasum && bytes > 0) {
    const auto elements = static_cast<std::size_t>(request.input.elements());
    const std::size_t size = collective::most_measured(elements, request.group->ranks.size()) * sizeof(double);
    operation.workspace = heap_block(size, operation, *shared);
    if (operation.workspace == nullptr) return;
    operation.notice.detail.workspace = shared->place_of(operation.workspace, size);
  }
  const std::size_t result_bytes = is_written_by_peers(request, rank) ? request.result_bytes() : 0;
  const bool relayed = way == Way::relayed && request.kind == Kind::all_reduce && is_plain(request);
  auto find = [&](const void* data, std::size_t size) {
    return relayed ? shared->place_of(data, size) : place_of(data, size, *shared);
  };
  const auto input = bytes > 0 ? find(request.input.data, bytes) : kNowhere;
  const auto output = result_bytes > 0 ? find(request.output.data, result_bytes) : kNowhere;
  if ((bytes == 0 || input != kNowhere) && (result_bytes == 0 || output != kNowhere)) {
    head.input = input;
    if (result_bytes > 0) head.output = output;
    return;
  }
  if (!(relayed ? stage_relay(operation, bytes, *shared) : stage_copy(operation, bytes, result_bytes, *shared))) {
    leave_in_place(operation, bytes, result_bytes, transport);
  }
}

void unstage(Operation& operation) {
  const Request& request = operation.request;
  if (operation.staged_result != nullptr) {
    std::memcpy(request.output.data, operation.staged_result, request.result_bytes());
  }
}

void drop_staged(Operation& operation, transport::Transport& transport) {
  for (std::byte** block : {&operation.staged, &operation.staged_splits, &operation.workspace}) {
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
  party.first_leaf = notice.detail->first_leaf;
  party.leaf_count = notice.detail->leaf_count;
  if (shared != nullptr && notice.detail->workspace != kNowhere) {
    party.workspace = shared->at(party.rank, notice.detail->workspace);
  }
  if (kind == Kind::all_to_all && notice.head == &own.notice.head) party.splits = own.request.splits.data();
  if (head.inline_bytes > 0) {
    party.input = notice.offer != nullptr ? notice.offer->data : head.inline_data;
    party.carried = party.copied = true;
    return;
  }
  if (!notice.attached.empty()) {
    party.input = notice.attached.data();
    party.carried = party.copied = true;
    return;
  }
  party.copied = (head.flags & transport::kCopied) != 0;
  if (shared == nullptr) return;
  if ((head.flags & transport::kRelayed) != 0) {
    party.relay = shared->at(party.rank, head.input);
    return;
  }
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
  result.dtype = request.result_dtype();
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
