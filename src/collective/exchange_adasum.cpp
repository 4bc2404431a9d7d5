// Adasum by messages: slices to their owners, what those have measured to everybody, and the combined slices likewise.
// What it is and how it is computed: adasum_kernel.hpp.
#include <algorithm>
#include <cstring>

#include "collective/adasum_plan.hpp"
#include "collective/algorithm.hpp"

namespace lockstep::collective {
namespace {

enum Part : std::uint32_t { kInput = 0, kMeasured = 1, kResult = 2 };  // of the messages

class ExchangeAdasum final : public Algorithm {
 public:
  explicit ExchangeAdasum(const Call& call)
      : call_(call),
        messages_(*call.transport->messages()),
        plan_(call_),
        self_(static_cast<std::size_t>(call.self)),
        mine_(plan_.slice(self_)),
        inputs_(call.count()),
        measured_(call.count()) {
    const std::size_t width = size_of(call_.dtype);
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (!call_.parties[i].present) continue;
      const ElementRange theirs = plan_.slice(i);
      inputs_[i].resize(mine_.count * width);
      measured_[i].resize(plan_.measured_size(i));
      if (i != self_) send(i, kInput, {call_.input + theirs.offset * width, theirs.count * width});
    }
    if (mine_.count > 0) std::memcpy(inputs_[self_].data(), call_.input + mine_.offset * width, mine_.count * width);
    output_ = call_.make_output(call_.parties[self_].rows);
    await_all();
  }

  bool advance() override {
    if (stage_ == kInput) {
      if (!receive_all([&](std::size_t i) { return std::span<std::byte>(inputs_[i]); })) return false;
      measure();
    }
    if (stage_ == kMeasured) {
      if (!receive_all([&](std::size_t i) { return std::as_writable_bytes(std::span(measured_[i])); })) return false;
      combine_mine();
    }
    return receive_all([&](std::size_t i) { return result_of(i); });
  }

 private:
  void send(std::size_t to, Part part, std::span<const std::byte> data) {
    messages_.send(call_.parties[to].rank, call_.id, part, data);
  }

  void await_all() {
    for (std::size_t i = 0; i < call_.count(); ++i) {
      if (call_.parties[i].present && i != self_) awaited_.push_back(i);
    }
  }

  template <class Target>
  bool receive_all(const Target& target) {
    std::erase_if(awaited_,
                  [&](std::size_t i) { return messages_.receive(call_.parties[i].rank, call_.id, stage_, target(i)); });
    return awaited_.empty();
  }

  std::span<std::byte> result_of(std::size_t party) {
    const ElementRange slice = plan_.slice(party);
    return {output_ + slice.offset * size_of(call_.dtype), slice.count * size_of(call_.dtype)};
  }

  std::vector<const std::byte*> leaves_at(std::size_t element) const {
    std::vector<const std::byte*> leaves;
    for (const LeafTable::Entry& entry : plan_.leaves().entries()) {
      leaves.push_back(inputs_[entry.party].data() + element * size_of(call_.dtype));
    }
    return leaves;
  }

  void tell_all(Part part, std::span<const std::byte> data) {
    stage_ = part;
    await_all();
    for (std::size_t i : awaited_) send(i, part, data);
  }

  void measure() {
    std::vector<Gram> blocks;
    for (std::size_t at = 0; at < mine_.count; at += kAdasumBlock) {
      blocks.push_back(gram_of_block(call_.dtype, leaves_at(at), std::min(kAdasumBlock, mine_.count - at)));
    }
    measured_[self_] = plan_.fold(blocks);
    tell_all(kMeasured, std::as_bytes(std::span(measured_[self_])));
  }

  void combine_mine() {
    std::vector<const double*> measured;
    for (const auto& one : measured_) measured.push_back(one.data());
    std::vector<std::byte> result(mine_.count * size_of(call_.dtype));
    combine(call_.dtype, leaves_at(0), plan_.factors(measured), result.data(), mine_.count);
    if (mine_.count > 0) std::memcpy(result_of(self_).data(), result.data(), result.size());
    tell_all(kResult, result);
  }

  Call call_;
  transport::Messages& messages_;
  AdasumPlan plan_;
  std::size_t self_;
  ElementRange mine_;
  std::vector<std::vector<std::byte>> inputs_;  // by party: of this rank's slice
  std::vector<std::vector<double>> measured_;   // by party
  std::vector<std::size_t> awaited_;
  std::byte* output_ = nullptr;
  Part stage_ = kInput;
};

}  // namespace

std::unique_ptr<Algorithm> make_exchange_adasum(const Call& call) { return std::make_unique<ExchangeAdasum>(call); }

}  // namespace lockstep::collective
