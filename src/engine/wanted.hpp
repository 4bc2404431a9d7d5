// What each call of the public interface asks for, as a Request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/operation.hpp"
#include "lockstep/engine.hpp"

namespace lockstep::engine {

Request request_for(collective::Kind kind, const TensorView& input, const TensorView& output, const Group& group,
                    int root = -1);
Request reduction(collective::Kind kind, const TensorView& input, const TensorView& output,
                  const ReduceOptions& options, int root = -1);
Request barrier_request(const std::string& name, const Group& group);
Request all_to_all_request(const TensorView& input, const std::vector<std::int64_t>& splits, const TensorView& output,
                           const Group& group);
Request pair_request(collective::Kind kind, const TensorView& tensor, int partner, int tag);

}  // namespace lockstep::engine
