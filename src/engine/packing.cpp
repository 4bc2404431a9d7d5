#include "engine/packing.hpp"

#include <map>
#include <memory>
#include <set>

#include "base/hash.hpp"
#include "engine/core.hpp"
#include "engine/request.hpp"
#include "negotiation/description.hpp"

namespace lockstep::engine {
namespace {

constexpr std::size_t kMostOfTensor = 128 * 1024;  // bytes. Above it a copy costs more than the messages that it saves.
constexpr std::size_t kMostOfPack = 2 << 20;       // so that one is under way while the next is computed

bool is_small(const Request& request) {
  const std::size_t bytes = request.input_bytes();
  return request.kind == collective::Kind::all_reduce && request.epilogue && request.leaves.total == 0 &&
         request.result_dtype() == request.input.dtype && bytes > 0 && bytes <= kMostOfTensor;
}

// Of all on which ranks must agree: the names of the tensors, their shapes, and how they lie in memory.
std::uint64_t hash_of_pack(const std::vector<Request>& requests) {
  Hasher hasher;
  for (const Request& request : requests) {
    const std::uint64_t numbers[] = {request.input.name.size(), request.input.shape.size(),
                                     negotiation::describe(request.kind, request.input).order};
    hasher.add(numbers, sizeof numbers);
    hasher.add(request.input.name.data(), request.input.name.size());
    hasher.add(request.input.shape.data(), request.input.shape.size() * sizeof(std::int64_t));
  }
  return hasher.value();
}

// Under the name of the first, so that a rank that wants something else with that tensor is told so.
Request one_of(std::vector<Request> requests) {
  std::vector<collective::Pack::Tensor> tensors;
  for (Request& request : requests) {
    tensors.push_back({.input = static_cast<const std::byte*>(request.input.data),
                       .output = static_cast<std::byte*>(request.output.data),
                       .elements = static_cast<std::size_t>(request.input.elements()),
                       .epilogue = std::move(request.epilogue)});
  }
  const std::uint64_t hash = hash_of_pack(requests);
  Request whole = std::move(requests.front());
  auto pack = std::make_shared<const collective::Pack>(std::move(tensors), whole.input.dtype);
  whole.input.data = whole.output.data = pack->memory.data();
  whole.input.shape = whole.output.shape = {static_cast<std::int64_t>(pack->elements)};
  whole.input.strides.clear();
  whole.output.strides.clear();
  whole.epilogue = [](const ReducedSlice&) {};  // each tensor has its own
  whole.pack = std::move(pack);
  whole.pack_hash = hash;
  return whole;
}

}  // namespace

std::vector<Request> packed(std::vector<Request> requests) {
  struct Open {
    std::vector<Request> requests;
    std::size_t bytes = 0;
  };
  std::map<DType, Open> open;
  std::vector<Request> result;
  auto close = [&](Open& pack) {
    if (pack.requests.size() == 1) {
      result.push_back(std::move(pack.requests.front()));
    } else if (!pack.requests.empty()) {
      result.push_back(one_of(std::move(pack.requests)));
    }
    pack = {};
  };
  for (Request& request : requests) {
    if (!is_small(request)) {
      result.push_back(std::move(request));
      continue;
    }
    Open& pack = open[request.input.dtype];
    if (pack.bytes + request.input_bytes() > kMostOfPack) close(pack);
    pack.bytes += request.input_bytes();
    pack.requests.push_back(std::move(request));
  }
  for (auto& [dtype, pack] : open) close(pack);
  return result;
}

std::vector<Core::OperationPtr> Core::submit_packed(std::vector<Request> requests, bool background) {
  if (transport_->messages() == nullptr) return submit_together(std::move(requests), background);
  {
    std::lock_guard lock(mutex_);
    check_together(requests);
  }
  return submit_together(packed(std::move(requests)), background);
}

// What `prepare` refuses in each of them, and could not see in a pack.
void Core::check_together(std::vector<Request>& requests) {
  refuse_if_unusable();
  std::set<std::string_view> names;
  for (Request& request : requests) {
    if (!request.group) request.group = groups_.world();
    complete_request(request, transport_->rank());
    check_request(request, transport_->rank());
    negotiation::describe(request.kind, request.input);
    const std::string& name = request.input.name;
    if (name.empty()) continue;
    if (!names.insert(name).second) refuse_name_twice(name);
    if (is_in_flight(name_key(request), name)) refuse_name_in_flight(name);
  }
}

}  // namespace lockstep::engine
