#include "engine/wanted.hpp"

#include "engine/request.hpp"

namespace lockstep::engine {

using collective::Kind;

Request request_for(Kind kind, const TensorView& input, const TensorView& output, const Group& group, int root) {
  Request request;
  request.kind = kind;
  request.input = input;
  request.output = output;
  request.root = root;
  request.group = group.members();
  return request;
}

Request reduction(Kind kind, const TensorView& input, const TensorView& output, const ReduceOptions& options,
                  int root) {
  Request request = request_for(kind, input, output, options.group, root);
  request.op = options.op;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  request.by_contributors = options.average_over_contributors;
  request.rounded_to = options.result_type;
  request.epilogue = options.epilogue;
  if (options.leaves.total != 0) take_partials(request, options.leaves);
  return request;
}

Request barrier_request(const std::string& name, const Group& group) {
  TensorView nothing;
  nothing.name = name;
  return request_for(Kind::barrier, nothing, {}, group);
}

Request all_to_all_request(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                           const Group& group) {
  Request request = request_for(Kind::all_to_all, input, output, group);
  request.splits = splits;
  return request;
}

Request pair_request(Kind kind, const TensorView& tensor, int partner, int tag) {
  // A pair is matched by its ranks and tag; a name would only get in the way.
  TensorView unnamed = tensor;
  unnamed.name.clear();
  Request request = request_for(kind, unnamed, kind == Kind::send ? TensorView() : unnamed, {});
  request.partner = partner;
  request.tag = tag;
  return request;
}

}  // namespace lockstep::engine
