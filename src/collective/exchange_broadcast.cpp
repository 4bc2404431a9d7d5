#include "collective/algorithm.hpp"

namespace lockstep::collective {
namespace {

class ExchangeBroadcast final : public Algorithm {
 public:
  explicit ExchangeBroadcast(const Call& call) : call_(call), messages_(*call.transport->messages()) {
    if (call_.self != call_.root) return;
    for (const Party& party : call_.parties) {
      if (party.rank != root().rank) messages_.send(party.rank, call_.id, 0, {call_.input, call_.bytes()});
    }
  }

  bool advance() override {
    return call_.self == call_.root || messages_.receive(root().rank, call_.id, 0, {call_.output, call_.bytes()});
  }

 private:
  const Party& root() const { return call_.parties[static_cast<std::size_t>(call_.root)]; }

  Call call_;
  transport::Messages& messages_;
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_broadcast(const Call& call) { return std::make_unique<ExchangeBroadcast>(call); }

}  // namespace lockstep::collective
