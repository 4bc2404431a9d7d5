// Several operations as one unit of work: a list of what each call by itself would ask for.
#include "engine/wanted.hpp"
#include "lockstep/engine.hpp"

namespace lockstep {
namespace {

using collective::Kind;
using engine::Request;

// Its epilogue learns which of the operations the slice belongs to.
Request numbered(Request request, std::size_t index) {
  if (!request.epilogue) return request;
  request.epilogue = [epilogue = std::move(request.epilogue), index](ReducedSlice slice) {
    slice.tensor = index;
    epilogue(slice);
  };
  return request;
}

}  // namespace

Batch::Batch() : requests_(std::make_unique<std::vector<Request>>()) {}
Batch::~Batch() = default;
Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&&) noexcept = default;

std::size_t Batch::size() const noexcept { return requests_->size(); }

void Batch::add(Request request) { requests_->push_back(numbered(std::move(request), size())); }

void Batch::all_reduce(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  add(engine::reduction(Kind::all_reduce, input, output, options));
}
void Batch::reduce(const TensorView& input, const TensorView& output, int root, const ReduceOptions& options) {
  add(engine::reduction(Kind::reduce, input, output, options, root));
}
void Batch::reduce_scatter(const TensorView& input, const TensorView& output, const ReduceOptions& options) {
  add(engine::reduction(Kind::reduce_scatter, input, output, options));
}
void Batch::broadcast(const TensorView& tensor, int root, const Group& group) {
  add(engine::request_for(Kind::broadcast, tensor, tensor, group, root));
}
void Batch::all_gather(const TensorView& input, const TensorView& output, const Group& group) {
  add(engine::request_for(Kind::all_gather, input, output, group));
}
void Batch::gather(const TensorView& input, int root, const TensorView& output, const Group& group) {
  add(engine::request_for(Kind::gather, input, output, group, root));
}
void Batch::scatter(const TensorView& input, int root, const TensorView& output, const Group& group) {
  add(engine::request_for(Kind::scatter, input, output, group, root));
}
void Batch::all_to_all(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                       const Group& group) {
  add(engine::all_to_all_request(input, splits, output, group));
}
void Batch::send(const TensorView& tensor, int receiver, int tag) {
  add(engine::pair_request(Kind::send, tensor, receiver, tag));
}
void Batch::receive(const TensorView& tensor, int sender, int tag) {
  add(engine::pair_request(Kind::receive, tensor, sender, tag));
}
void Batch::barrier(const std::string& name, const Group& group) { add(engine::barrier_request(name, group)); }

}  // namespace lockstep
