#include "collective/relay_pass.hpp"

#include <cstring>

#include "collective/publish.hpp"
#include "lockstep/epilogue.hpp"

namespace lockstep::collective {

constexpr int kWindowsAtOnce = 8;  // before other operations get their turn

void RelayPass::begin(transport::Transport& transport, std::span<const Party> parties, std::size_t self,
                      const Reduction& like, std::size_t elements, const std::byte* input, std::byte* output,
                      Reach* reach) {
  transport_ = &transport;
  shared_ = transport.shared();
  reach_ = reach;
  like_ = like;
  input_ = input;
  output_ = output;
  elements_ = elements;
  width_ = size_of(like.dtype);
  window_ = kRelayWindow / width_;
  windows_ = static_cast<std::uint32_t>((elements + window_ - 1) / window_);
  sides_.clear();
  for (std::size_t i = 0; i < parties.size(); ++i) {
    if (i == self) own_ = sides_.size();
    if (parties[i].present) sides_.push_back({&parties[i], i});
  }
  leaves_.resize(sides_.size());
  const std::atomic<std::uint32_t>* words = parties[self].scratch;
  reduced_ = words[kReduced].load(std::memory_order_relaxed);
  brought_ = is_relayed(own_) ? words[kBrought].load(std::memory_order_relaxed) : windows_;
  fetched_ = is_relayed(own_) ? words[kFetched].load(std::memory_order_relaxed) : windows_;
}

bool RelayPass::advance() {
  for (int i = 0; i < kWindowsAtOnce && std::min(reduced_, fetched_) < windows_; ++i) {
    const std::uint64_t before = progress();
    // What others wait for comes first.
    if (may_reduce() && !reduce()) return false;
    if (may_fetch() && !fetch()) return false;
    if (may_bring() && !bring()) return false;
    if (progress() == before) return false;
  }
  return all_have(kReduced, windows_) && all_have(kFetched, windows_);
}

bool RelayPass::all_have(Word word, std::uint32_t windows) const {
  return std::all_of(sides_.begin(), sides_.end(), [&](const Side& side) {
    const bool counts = word == kReduced || side.party->relay != nullptr;
    return !counts || side.party->scratch[word].load(std::memory_order_acquire) >= windows;
  });
}

// A window is brought to the place of the one before the last, which nobody must read any more.
bool RelayPass::may_bring() const {
  return brought_ < windows_ && (brought_ < kRelayWindows || all_have(kFetched, brought_ - kRelayWindows + 1));
}

bool RelayPass::bring() {
  const transport::Access access(shared_);
  if (!access) return false;
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    const Part part = part_of(i, brought_);
    if (i != own_) publish(in_relay(own_, part), input_ + part.offset * width_, part.count * width_);
  }
  say(kBrought, ++brought_);
  return true;
}

bool RelayPass::reduce() {
  const transport::Access access(shared_);
  if (!access) return false;
  const Part whole = part_of(own_, reduced_);
  const std::size_t step = reach_ != nullptr ? std::min(reach_->block_bytes() / width_, window_) : window_;
  for (std::size_t done = 0; done < whole.count; done += step) {
    if (!reduce_part({whole.offset + done, std::min(step, whole.count - done)})) return false;
  }
  say(kReduced, ++reduced_);
  return true;
}

bool RelayPass::reduce_part(Part part) {
  const std::size_t at = part.offset * width_, bytes = part.count * width_;
  outputs_.clear();
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    if (!is_relayed(i)) {
      const Party& party = *sides_[i].party;
      leaves_[i] = party.input != nullptr ? party.input + at : reach_->leaf(i, at, bytes);
      outputs_.push_back(party.output != nullptr ? party.output + at : reach_->output(sides_[i].index, at, bytes));
    } else if (i != own_) {
      leaves_[i] = in_relay(i, part);
    } else {
      leaves_[i] = input_ + at;
      outputs_.push_back(output_ + at);
    }
    if (leaves_[i] == nullptr) return false;
  }
  Reduction reduction = like_;
  reduction.leaves = leaves_;
  reduction.outputs = outputs_;
  reduction.elements = part.count;
  collective::reduce(reduction);
  // Not by the sum itself, whose stores would wait for each line of the relay to come from those who have read it.
  if (is_relayed(own_)) publish(in_relay(own_, part), output_ + at, bytes);
  return std::all_of(sides_.begin(), sides_.end(), [&](const Side& side) {
    return side.party->relay != nullptr || side.party->output != nullptr || reach_->deliver(side.index, at, bytes);
  });
}

bool RelayPass::fetch() {
  const transport::Access access(shared_);
  if (!access) return false;
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    const Part part = part_of(i, fetched_);
    if (i == own_ || part.count == 0) continue;
    const Party& party = *sides_[i].party;
    const std::span<std::byte> to(output_ + part.offset * width_, part.count * width_);
    if (is_relayed(i)) {
      std::memcpy(to.data(), in_relay(i, part), to.size());
    } else if (party.output != nullptr) {
      std::memcpy(to.data(), party.output + part.offset * width_, to.size());
    } else if (!shared_->read(party.rank, party.output_place, part.offset * width_, to)) {
      return false;
    }
  }
  say(kFetched, ++fetched_);
  return true;
}

// What a side reduces of a window.
RelayPass::Part RelayPass::part_of(std::size_t side, std::uint32_t window) const {
  const std::size_t begin = window * window_;
  const ElementRange slice = owned_slice(std::min(window_, elements_ - begin), like_.dtype, side, sides_.size());
  return {begin + slice.offset, slice.count};
}

std::byte* RelayPass::in_relay(std::size_t side, Part part) const {
  return sides_[side].party->relay + part.offset % (kRelayWindows * window_) * width_;
}

// Sequentially consistent, so that either a peer sees it before it sleeps or `ring` sees that it sleeps.
void RelayPass::say(Word word, std::uint32_t windows) {
  sides_[own_].party->scratch[word].store(windows, std::memory_order_seq_cst);
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    if (i != own_) transport_->ring(sides_[i].party->rank);
  }
}

}  // namespace lockstep::collective
