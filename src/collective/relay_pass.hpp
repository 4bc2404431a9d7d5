// All-reduce of tensors that lie outside the heap, each brought to its peers by its owner through a relay: memory in
// the heap that holds two windows of the tensor.
//
// The tensors are cut into windows, and each window into a slice per rank. A rank
//   brings   to its relay the slices that others reduce,
//   reduces  its own slice, from its own memory and the others' relays, into its own memory, and brings that too,
//   fetches  the other slices from the relays of those who reduced them.
// What is copied stays in the cache, and the system is not asked for anything. A rank brings the next window while
// others work on this one. How far it has come it says in three words that only it writes.
//
// A party whose tensor lies in the heap brings and fetches nothing: it is read, and written, where it is. So is one
// that found no room for a relay, by way of the system.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/call.hpp"
#include "collective/reach.hpp"
#include "collective/reduce_kernel.hpp"
#include "transport/transport.hpp"

namespace lockstep::collective {

/// What all ranks pass on at once. The relays of two ranks stay in their second-level caches.
inline constexpr std::size_t kRelayWindow = 128 * 1024;

/// The windows that a relay holds: while peers still read from one, its owner fills the next.
inline constexpr std::size_t kRelayWindows = 2;

/// Size of a relay for a tensor of `bytes`.
inline std::size_t relay_bytes(std::size_t bytes) { return std::min(bytes, kRelayWindows * kRelayWindow); }

/// One rank's part. It allocates nothing when it is used again.
class RelayPass {
 public:
  /// `like`: everything but leaves, outputs and the number of elements. `reach` is needed where a party has neither
  /// relay nor heap. Goes on from where the party's words say that an earlier pass has stopped. All that is given
  /// outlives the pass.
  void begin(transport::Transport& transport, std::span<const Party> parties, std::size_t self, const Reduction& like,
             std::size_t elements, const std::byte* input, std::byte* output, Reach* reach = nullptr);

  /// Does what can be done now, at most a few windows. True when the result is complete and nobody reads this rank's
  /// relay any more. False also when the world has ended, or a party is gone, which will end it.
  bool advance();

  /// Grows whenever something was done.
  std::uint64_t progress() const { return std::uint64_t{brought_} + reduced_ + fetched_; }

 private:
  enum Word : std::size_t { kBrought, kReduced, kFetched };  // windows, in the scratch words of each party

  struct Side {  // a party that is present
    const Party* party;
    std::size_t index;  // among all parties
  };

  struct Part {
    std::size_t offset = 0;  // elements into the tensor
    std::size_t count = 0;
  };

  bool is_relayed(std::size_t side) const { return sides_[side].party->relay != nullptr; }
  bool all_have(Word word, std::uint32_t windows) const;
  bool may_bring() const;
  bool may_reduce() const { return reduced_ < windows_ && all_have(kBrought, reduced_ + 1); }
  bool may_fetch() const { return fetched_ < windows_ && all_have(kReduced, fetched_ + 1); }
  bool bring();
  bool reduce();
  bool reduce_part(Part part);
  bool fetch();
  Part part_of(std::size_t side, std::uint32_t window) const;
  std::byte* in_relay(std::size_t side, Part part) const;
  void say(Word word, std::uint32_t windows);

  transport::Transport* transport_ = nullptr;
  transport::SharedMemory* shared_ = nullptr;
  Reach* reach_ = nullptr;
  Reduction like_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::size_t elements_ = 0;
  std::size_t width_ = 0;
  std::size_t window_ = 0;  // elements
  std::size_t own_ = 0;     // among the sides
  std::uint32_t windows_ = 0;
  std::uint32_t brought_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t fetched_ = 0;
  std::vector<Side> sides_;
  std::vector<const std::byte*> leaves_;
  std::vector<std::byte*> outputs_;
};

}  // namespace lockstep::collective
