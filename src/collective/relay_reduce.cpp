// A relay pass (relay_pass.hpp) as an algorithm.
#include "collective/algorithm.hpp"
#include "collective/leaf_table.hpp"
#include "collective/reach.hpp"
#include "collective/relay_pass.hpp"

namespace lockstep::collective {
namespace {

class RelayReduce final : public Algorithm {
 public:
  explicit RelayReduce(const Call& call) : call_(call), table_(call_), reach_(call_, table_) {
    const Reduction like{.dtype = call_.dtype,
                         .op = call_.op,
                         .leaves = {},
                         .numbers = table_.numbers(),
                         .total = table_.total(),
                         .outputs = {},
                         .divisor = call_.divisor,
                         .prescale = call_.prescale,
                         .postscale = call_.postscale};
    pass_.begin(*call_.transport, call_.parties, static_cast<std::size_t>(call_.self), like, call_.elements,
                call_.input, call_.output, &reach_);
  }

  bool advance() override { return pass_.advance(); }

 private:
  Call call_;
  LeafTable table_;
  Reach reach_;
  RelayPass pass_;
};

}  // namespace

std::unique_ptr<Algorithm> make_relay_reduce(const Call& call) { return std::make_unique<RelayReduce>(call); }

}  // namespace lockstep::collective
